"""Runs the pipeline: ingest, merge, aggregate, maintain. `python run.py merge aggregate` runs some of the steps.

Each step may be killed and run again. The logs of the datasets say what is done; there is no other state than the
checkpoints of Spark's streams.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import yaml
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from parketto import Dataset

PROJECT = Path(__file__).absolute().parent
SPEC = PROJECT / "spark-pipeline.yml"
# Commits and rows have the clocks of the machines that made them.
CLOCK_TOLERANCE = dt.timedelta(hours=1)


def setting(name: str) -> str:
    """A setting of `spark-pipeline.yml`."""
    return str(yaml.safe_load(SPEC.read_text())["configuration"][name])


def dataset(name: str) -> Dataset:
    """A dataset of `spark-pipeline.yml`, on Spark."""
    path = setting(f"spark.paths.{name}")
    return Dataset(path if "://" in path else str(PROJECT / path), engine="spark")


def ingest() -> None:
    """Append new events, exactly once, as `transformations/` declares it."""
    subprocess.run([sys.executable, "-m", "parketto.cli", "spark-pipelines", "run", "--spec", SPEC], check=True)


def merge() -> None:
    """Keep the highest version of each event, however late or often it was delivered."""
    events, latest = dataset("events"), dataset("latest")
    if (number := unprocessed(events, latest, "merge")) is None:
        return
    done = latest.apply_changes(
        new_rows(events, latest, "merge"),
        ["id"],
        sequence_by="version",
        except_columns=["ingested_at"],
        partition_by=["day"],
        commit_id=f"merge:{number}",
    )
    print(f"merge: {done['inserted']} events inserted, {done['updated']} updated")


def aggregate() -> None:
    """Total the days that have new events, or had an older version of one, and replace only these."""
    events, latest, daily = dataset("events"), dataset("latest"), dataset("daily")
    if (number := unprocessed(events, daily, "aggregate")) is None:
        return
    ids = new_rows(events, daily, "aggregate").select("id").distinct()
    days = events.to_spark().join(ids, "id", "left_semi").select("day").distinct().collect()
    condition = "day IN (" + ", ".join(f"DATE '{row.day}'" for row in days) + ")"
    totals = latest.to_spark().where(condition).groupBy("day", "kind")
    done = daily.write(
        totals.agg(F.count("*").alias("events"), F.sum("amount").alias("amount")),
        mode="overwrite",
        replace_where=condition,
        partition_by=["day"],
        commit_id=f"aggregate:{number}",
    )
    print(f"aggregate: {done['rows_written']} totals of {len(days)} days")


def maintain() -> None:
    """Merge small files, and lay the latest events out so that queries by customer or amount skip most of them."""
    dataset("events").compact()
    dataset("daily").compact()
    rows = int(setting("spark.maintain.rows_per_file"))
    done = dataset("latest").optimize(["customer", "amount"], target_rows_per_file=rows)
    print(f"maintain: {done['compacted_file_count']} files of the latest events rewritten")


def unprocessed(source: Dataset, target: Dataset, step: str) -> int | None:
    """The number of the source's last append; None if the target's log shows that it was processed."""
    history = source.history() if source.exists() else []
    number = next((commit["number"] for commit in history if commit["operation"] == "append"), None)
    return None if number == last_processed(target, step) else number


def last_processed(target: Dataset, step: str) -> int | None:
    """The number of the commit of the source up to which a step was done, from the target's log."""
    ids = [commit["commit_id"] or "" for commit in target.history()] if target.exists() else []
    return next((int(name.partition(":")[2]) for name in ids if name.startswith(f"{step}:")), None)


def new_rows(source: Dataset, target: Dataset, step: str) -> DataFrame:
    """The rows since that commit, and some older ones: processing a row again has no effect."""
    rows, done = source.to_spark(), last_processed(target, step)
    times = [commit["at"] for commit in source.history() if commit["number"] == done]
    if not times:
        return rows
    return rows.where(F.col("ingested_at") > F.lit(dt.datetime.fromisoformat(times[0]) - CLOCK_TOLERANCE))


STEPS = {"ingest": ingest, "merge": merge, "aggregate": aggregate, "maintain": maintain}

if __name__ == "__main__":
    for step in sys.argv[1:] or STEPS:
        STEPS[step]()
