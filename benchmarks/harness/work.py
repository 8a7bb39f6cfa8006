"""The work that is measured: what is asked of every contestant, and what must come out.

Conditions are triples (column, comparison, value), all of which must hold: each contestant says that in its own
language. What must come out is one SQL query over a view named `data`, which plain DuckDB answers from the same
input.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness import data
from harness.data import KINDS, Made
from harness.request import Condition, Request

UPSERT_ROWS = 1_000
PLANNED_FILES = 10_000
GROWTH = (1, 4, 16)
PLANNED = (1, 10, 100)
LOCAL = ("parketto/duckdb", "parketto/pyarrow")
ALONE = tuple(f"{name} alone" for name in LOCAL)
INDEXED = tuple(f"{name} indexed" for name in LOCAL)
BY_HAND = ("duckdb", "polars", "delta")


@dataclass(frozen=True)
class Job:
    """A line of the tables: work on one kind of data.

    Attributes:
        title: What the tables call it.
        operation: What is done.
        kind: The data.
        ask: The request, given the data and a folder for sources.
        in_quick: Who takes part in a quick run beside Parketto with DuckDB.
        only: Who takes part at all; empty: everybody who can.
        scales: The sizes at which it is measured, as multiples of the base.
        target: The ratio to reach on Spark, as `spark.py` prints it.
    """

    title: str
    operation: str
    kind: str
    ask: Callable[[Made, str], Request]
    in_quick: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    target: float | None = None
    scales: tuple[int, ...] = (1,)


def request_for(job: Job, made: Made, sources: str) -> Request:
    """The request of a job on data of some size."""
    request = job.ask(made, sources)
    kind = KINDS[made.kind]
    return replace(
        request,
        root=made.root,
        rows=made.rows,
        parts=max(1, round(made.bytes / 2**20 / request.target_mb)),
        partition_columns=(kind.partition_column,) if kind.partition_column else (),
    )


def _compact(_made: Made, _sources: str) -> Request:
    return Request("compact", "")


def _cluster(_made: Made, _sources: str) -> Request:
    return Request("cluster", "", columns=("product", "price"))


def _cluster_text(made: Made, _sources: str) -> Request:
    return Request("cluster", "", columns=("a", "b"), target_rows=-(-made.rows // made.files))


def _plan(made: Made, _sources: str) -> Request:
    return Request("plan", "", options={"files": PLANNED_FILES * made.files})


def _import(_made: Made, _sources: str) -> Request:
    return Request("import", "")


def _upsert(
    name: str, pick: Callable[[Made], np.ndarray], operation: str = "upsert", *, frame: bool = False
) -> Callable[[Made, str], Request]:
    def ask(made: Made, sources: str) -> Request:
        path = os.path.join(sources, f"{os.path.basename(made.root)}-{name}.parquet")
        if not os.path.exists(path):
            data.merge_source(pick(made), path, KINDS[made.kind].make)
        return Request(operation, "", source=path, options={"frame": True} if frame else {})

    return ask


def _one_file(made: Made) -> np.ndarray:
    each = made.rows // made.files
    return np.arange(each, each + min(UPSERT_ROWS, max(1, each // 2)))


def _all_over(made: Made) -> np.ndarray:
    return np.linspace(0, made.rows - 1, min(UPSERT_ROWS, made.rows)).astype(np.int64)


def _a_fifth(made: Made) -> np.ndarray:
    return np.random.default_rng(5).permutation(made.rows + made.rows // 20)[: made.rows // 5]


def _as_many(made: Made) -> np.ndarray:
    return np.random.default_rng(5).permutation(made.rows + made.rows // 20)[: made.rows]


def _half(made: Made) -> np.ndarray:
    return _as_many(made)[: made.rows // 2]


def _after(made: Made) -> np.ndarray:
    return np.arange(made.rows, 2 * made.rows)


def _near(made: Made) -> tuple[Condition, ...]:
    first = made.rows // 3
    return (("id", ">=", first), ("id", "<", first + made.rows // 100))


def _one_percent(made: Made) -> np.ndarray:
    return np.linspace(0, made.rows - 1, max(1, made.rows // 100)).astype(np.int64)


def _far(_made: Made) -> tuple[Condition, ...]:
    return (("bucket", "=", 7),)


def _two_percent(_made: Made) -> tuple[Condition, ...]:
    return (("bucket", ">=", 7), ("bucket", "<", 9))


def _in_partition(_made: Made) -> tuple[Condition, ...]:
    return (("bucket", "=", 7), ("lot", "=", 3))


def _on_a_day(made: Made) -> tuple[Condition, ...]:
    return (("day", "=", data.days(made) // 2), ("id", "=", data.DAY_FILES * data.DAY_FILE_ROWS // 2))


def _delete(pick: Callable[[Made], tuple[Condition, ...]]) -> Callable[[Made, str], Request]:
    return lambda made, _: Request("delete", "", condition=pick(made))


def _few_rows(pick: Callable[[Made], tuple[Condition, ...]]) -> Callable[[Made, str], Request]:
    return lambda made, _: Request("delete", "", condition=pick(made), options={"few_rows": True})


def _update(pick: Callable[[Made], tuple[Condition, ...]]) -> Callable[[Made, str], Request]:
    return lambda made, _: Request("update", "", condition=pick(made), assign=("price", 2))


def _repartition(_made: Made, _sources: str) -> Request:
    return Request("repartition", "", columns=("product",))


def _growth(title: str, operation: str, ask: Callable[[Made, str], Request]) -> Job:
    """Files of one size (3,125 rows, if there are 10 million at 1x), and 200, 800 and 3,200 of them."""
    return Job(title, operation, "small", ask, only=(*LOCAL, *INDEXED, *BY_HAND), scales=GROWTH)


def _by_device(_made: Made, _sources: str) -> Request:
    return Request("repartition", "", columns=("device",))


JOBS: dict[str, Job] = {
    "compact-narrow": Job("compact, narrow rows", "compact", "narrow", _compact, ("pyarrow",)),
    "compact-wide": Job("compact, 100 columns", "compact", "wide", _compact, ("duckdb",)),
    "compact-strings": Job("compact, text", "compact", "strings", _compact, ("polars",)),
    "compact-tiny": Job("compact, tiny files and row groups", "compact", "tiny", _compact, ("delta", "fsspeckit")),
    "compact-healthy": Job(
        "compact, healthy row groups",
        "compact",
        "healthy",
        _compact,
        ("parketto/spark", "parketto/pyarrow", "spark", "duckdb", "delta"),
    ),
    "compact-partitioned": Job("compact, 100 partitions", "compact", "partitioned", _compact, ("delta",)),
    "cluster": Job("cluster by 2 columns", "cluster", "healthy", _cluster, ("parketto/pyarrow", "delta")),
    "upsert-narrow": Job(
        "upsert, keys of one file", "upsert", "healthy", _upsert("narrow", _one_file), ("delta",)
    ),
    "upsert-scattered": Job(
        "upsert, keys all over",
        "upsert",
        "healthy",
        _upsert("scattered", _all_over),
        ("parketto/spark", "spark", "delta"),
    ),
    "upsert-large": Job(
        "upsert, a fifth of the rows", "upsert", "healthy", _upsert("large", _a_fifth), ("delta",)
    ),
    "delete-narrow": Job("delete 1 % in a range", "delete", "healthy", _delete(_near), ("delta",)),
    "delete-scattered": Job("delete 1 % all over", "delete", "healthy", _delete(_far), ("duckdb",)),
    "update": Job("update 1 % all over", "update", "healthy", _update(_far), ("delta",)),
    "delete-partition": Job(
        "delete 1 % of one partition", "delete", "partitioned", _delete(_in_partition), ("delta",)
    ),
    "update-partition": Job(
        "update 1 % of one partition", "update", "partitioned", _update(_in_partition), ("duckdb",)
    ),
    "repartition": Job(
        f"repartition by {data.PRODUCTS} values", "repartition", "healthy", _repartition, ("polars",)
    ),
    "upsert-medium": Job(
        "upsert 1 % all over, 100 files of 30,000 rows", "upsert", "medium", _upsert("percent", _one_percent)
    ),
    "delete-medium": Job("delete 1 % all over, 100 files of 30,000 rows", "delete", "medium", _delete(_far)),
    "cluster-text": Job("cluster by 2 columns of text", "cluster", "text", _cluster_text, only=(*LOCAL, *BY_HAND)),
    "delete-day": Job(
        "delete one row of a partition of 100 files, 80 partitions",
        "delete",
        "days",
        _few_rows(_on_a_day),
        only=(*LOCAL, *ALONE),
    ),
    "delete-many-days": Job(
        "delete one row of a partition of 100 files, 1,000 partitions",
        "delete",
        "many-days",
        _few_rows(_on_a_day),
        only=(*LOCAL, *ALONE),
    ),
    "plan": Job("plan a compaction, 10,000 files at 1x", "plan", "one", _plan, scales=PLANNED),
    "import": Job("import", "import", "one", _import),
    "small-compact": _growth("compact small files", "compact", _compact),
    "small-upsert": _growth("upsert 1 % all over, small files", "upsert", _upsert("percent", _one_percent)),
    "small-delete": _growth("delete 1 % in a range, small files", "delete", _delete(_near)),
    "small-cluster": _growth("cluster small files by 2 columns", "cluster", _cluster),
    "small-repartition": _growth("repartition small files by 20 values", "repartition", _repartition),
}

ON_SPARK = ("parketto/spark", "spark")


def _on_spark(
    title: str, operation: str, kind: str, ask: Callable[[Made, str], Request], target: float | None = None
) -> Job:
    return Job(title, operation, kind, ask, (), ON_SPARK, target)


#: What `spark.py` measures: in one warm session, by hand and with Parketto, sources as DataFrames.
SPARK_JOBS: dict[str, Job] = {
    "spark-append": _on_spark(
        "append a DataFrame", "append", "healthy", _upsert("append", _after, "append", frame=True), 0.9
    ),
    "spark-upsert-all": _on_spark(
        "upsert, as many rows as there are", "upsert", "healthy", _upsert("all", _as_many, frame=True), 1.2
    ),
    "spark-upsert-skewed": _on_spark(
        "upsert, 90 % in one partition", "upsert", "skewed", _upsert("skewed", _half, frame=True), 1.0
    ),
    "spark-upsert-scattered": _on_spark(
        "upsert, keys all over", "upsert", "healthy", _upsert("scattered", _all_over, frame=True), 2.0
    ),
    "spark-upsert-narrow": _on_spark(
        "upsert, keys of one file", "upsert", "healthy", _upsert("narrow", _one_file, frame=True), 3.7
    ),
    "spark-upsert-many-narrow": _on_spark(
        "upsert, as many narrow rows", "upsert", "narrow", _upsert("all", _as_many, frame=True)
    ),
    "spark-compact": _on_spark("compact", "compact", "healthy", _compact, 9.3),
    "spark-delete-narrow": _on_spark("delete 1 % in a range", "delete", "healthy", _delete(_near), 7.4),
    "spark-delete": _on_spark("delete 2 % all over", "delete", "healthy", _delete(_two_percent), 1.9),
    "spark-update": _on_spark("update one column", "update", "healthy", _update(_far), 6.3),
    "spark-cluster": _on_spark("cluster by 2 columns", "cluster", "healthy", _cluster, 2.0),
    "spark-repartition": _on_spark(
        f"repartition by {data.PRODUCTS} values", "repartition", "healthy", _repartition, 2.1
    ),
}
#: What `spark.py --driver` measures: what the driver needs for many files, and for many rows.
DRIVER_JOBS: dict[str, Job] = {
    "driver-compact": Job(
        "compact, 10,000 files at 1x", "compact", "many-days", _compact, (), ON_SPARK[:1], scales=(1, 10)
    ),
    "driver-repartition": Job(
        f"repartition by {data.DEVICES:,} values, 100,000 rows at 1x",
        "repartition",
        "devices",
        _by_device,
        (),
        ON_SPARK[:1],
        scales=(1, 10),
    ),
}
ALL_JOBS = {**JOBS, **SPARK_JOBS, **DRIVER_JOBS}
