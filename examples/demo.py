"""The story of a pipeline: events land as JSON, are streamed, merged and totalled, and survive a kill -9.

Run it with `make demo`. It creates a project as `parketto init-pipeline` does, in a temporary folder, and compares
every result with what was generated.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from parketto import Dataset
from parketto.cli.pipelines import create
from sample_events import CUSTOMERS, Feed

console = Console(width=110)
FIRST, SECOND, LATE, CORRECTED, REPEATED, BROKEN = 30_000, 12_000, 3_000, 2_000, 4_000, 40
FILES_PER_BATCH = 2
SETTINGS = {"spark.ingest.files_per_batch": FILES_PER_BATCH, "spark.maintain.rows_per_file": 1_500}
QUERIES = {"one customer": f"customer = {CUSTOMERS // 2}", "the largest 1 % of amounts": "amount > 990"}
# The programs of this demo end after a few seconds: optimising compilation would take most of them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class Story:
    """A project, what was delivered to it, and what it must contain."""

    def __init__(self, project: Path) -> None:
        create(project, "demo")
        spec = project / "spark-pipeline.yml"
        lines = spec.read_text().splitlines()
        for name, value in SETTINGS.items():
            lines = [f'  {name}: "{value}"' if line.strip().startswith(f"{name}:") else line for line in lines]
        spec.write_text("\n".join(lines))
        self.project, self.feed, self._number = project, Feed(), 0
        self.steps = imported(project / "run.py")

    def heading(self, title: str, remark: str) -> None:
        """Say what comes next."""
        self._number += 1
        console.print(f"\n[bold]{self._number}. {title}[/] – {remark}")

    def dataset(self, name: str) -> Dataset:
        """A dataset of the project, read without Spark."""
        return Dataset(str(self.project / "data" / name), engine="pyarrow")

    def micro_batches(self) -> int:
        """The micro-batches that are in the log."""
        events = self.dataset("events")
        commits = events.history() if events.exists() else []
        return sum(commit["operation"] == "append" for commit in commits)

    def land(self, events: list[dict[str, Any]], micro_batches: int, broken: int = 0) -> None:
        """Let events land, in files for so many micro-batches."""
        files = micro_batches * FILES_PER_BATCH
        size = self.feed.land(self.project / "landing", events, files, broken=broken)
        console.print(f"   {len(events):,} lines of JSON in {files} files, {size / 2**20:.1f} MB")

    def check_events(self) -> None:
        """Compare every delivery with what was generated."""
        rows = self.dataset("events").read(columns=["id", "version"])
        found = Counter(zip(*(rows.column(name).to_pylist() for name in ("id", "version")), strict=True))
        assert found == self.feed.delivered, "each delivery exactly once"
        console.print(f"   [green]✓[/] data/events has all {rows.num_rows:,} deliveries, each exactly once")

    def check_latest(self) -> None:
        """Compare the merged events and their totals with what was generated."""
        latest, daily = self.dataset("latest").read().to_pylist(), self.dataset("daily").read().to_pylist()
        found = {row["id"]: (row["version"], row["at"].isoformat(), float(row["amount"])) for row in latest}
        assert len(latest) == len(found), "one row per event"
        expected = {row["id"]: (row["version"], row["at"], row["amount"]) for row in self.feed.latest.values()}
        assert found == expected, "the last version of each event"
        totals = {(str(row["day"]), row["kind"]): (row["events"], round(row["amount"] * 100)) for row in daily}
        assert len(daily) == len(totals), "one total for each day and kind"
        assert totals == self.feed.totals(), "totals of the last versions"
        console.print(
            f"   [green]✓[/] data/latest has the last version of all {len(latest):,} events; "
            f"data/daily has all {len(daily)} totals"
        )

    def run(self, *steps: str) -> None:
        """Run steps of the project in this process, on one Spark session."""
        for step in steps:
            said, start = io.StringIO(), time.perf_counter()
            with contextlib.redirect_stdout(said):
                getattr(self.steps, step)()
            console.print(f"   {said.getvalue().strip()} ({time.perf_counter() - start:.1f} s)")

    @contextlib.contextmanager
    def ingesting(self) -> Iterator[subprocess.Popen[str]]:
        """Run `parketto spark-pipelines run` in a process group of its own, which is gone at the end."""
        command = [sys.executable, "-m", "parketto.cli", "spark-pipelines", "run"]
        with (
            (self.project / "ingest.log").open("w") as log,
            subprocess.Popen(
                command, cwd=self.project, stdout=log, stderr=log, text=True, start_new_session=True
            ) as process,
            console.status("parketto spark-pipelines run …"),
        ):
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def ingest(self) -> None:
        """Run the stream until it has processed all files."""
        start, before = time.perf_counter(), self.micro_batches()
        with self.ingesting() as process:
            code = process.wait()
        assert code == 0, (self.project / "ingest.log").read_text()
        console.print(
            f"   Spark started, and {self.micro_batches() - before} micro-batches were committed, "
            f"in {time.perf_counter() - start:.1f} s"
        )

    def ingest_killed(self, expected: int) -> None:
        """Run the stream, and kill it after its first commit."""
        before = self.micro_batches()
        with self.ingesting() as process:
            while process.poll() is None and self.micro_batches() == before:
                time.sleep(0.05)
            assert process.poll() is None, (self.project / "ingest.log").read_text()
        committed = self.micro_batches() - before
        rows = self.dataset("events").count()
        console.print(
            f"   SIGKILL to Python and the JVM after {committed} of {expected} micro-batches: "
            f"{rows:,} of {self.feed.delivered.total():,} deliveries are committed"
        )


def imported(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(f"demo_{path.stem}", path)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Reads:
    """What a query reads of a dataset, as the footers tell: row groups whose bounds do not exclude it."""

    found: int
    files: int
    row_groups: int
    row_groups_in_all: int
    size: int
    size_in_all: int

    @classmethod
    def of(cls, dataset: Dataset, condition: str) -> Reads:
        """Of a query with one comparison, `column = value` or `column > value`."""
        column, operator, text = condition.split()
        value, files, read = float(text), dataset.files(), []
        for file in files:
            bounds = [group.columns[column] for group in file.row_groups]
            read.append(sum(b.max > value if operator == ">" else b.min <= value <= b.max for b in bounds))
        return cls(
            found=dataset.count(condition),
            files=sum(map(bool, read)),
            row_groups=sum(read),
            row_groups_in_all=sum(len(file.row_groups) for file in files),
            size=sum(f.size_bytes * n // len(f.row_groups) for f, n in zip(files, read, strict=True)),
            size_in_all=sum(file.size_bytes for file in files),
        )

    def cells(self) -> list[str]:
        """The cells of a row."""
        groups, share = f"{self.row_groups} of {self.row_groups_in_all}", f"{self.size / self.size_in_all:.0%}"
        return [f"{self.found:,}", str(self.files), groups, f"{self.size / 1024:,.0f}", share]


def maintain(story: Story) -> None:
    """Merge small files and cluster, and show what queries read before and after."""
    story.heading("Maintain", "small files are merged, and the latest events laid out for queries by two columns")
    events, latest = story.dataset("events"), story.dataset("latest")
    before = {name: Reads.of(latest, condition) for name, condition in QUERIES.items()}
    small = len(events.files())
    story.run("maintain")
    console.print(f"   data/events: {small} files became {len(events.files())}")
    table = Table(title="What queries of data/latest read", title_justify="left")
    table.add_column("query")
    table.add_column("")
    for heading in ("rows found", "files", "row groups", "kB", "of all bytes"):
        table.add_column(heading, justify="right")
    for name, condition in QUERIES.items():
        after = Reads.of(latest, condition)
        table.add_row(name, "before", *before[name].cells())
        table.add_row("", "after", *after.cells())
        assert before[name].found == after.found, "the same rows"
        assert after.size < before[name].size, "and fewer bytes"
    console.print(table)


def main() -> None:
    """The story, in a temporary folder, or in a new one that is kept: `demo.py DIR`."""
    begin, kept = time.perf_counter(), sys.argv[1] if len(sys.argv) > 1 else None
    with contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder, "demo").absolute())
        feed = story.feed

        story.heading("Events land", f"{FIRST:,} of three days, in no order")
        first = feed.events(FIRST, [0, 1, 2])
        story.land(list(first), 2)

        story.heading("Ingest", "a Spark Declarative Pipeline cleans them and streams them into data/events")
        story.ingest()
        story.check_events()

        story.heading("Merge and total", "one row per event, and one total for each day and kind")
        story.run("merge", "aggregate")
        story.check_latest()

        remark = f"{SECOND:,} new, {LATE:,} late, {CORRECTED:,} corrected, {REPEATED:,} repeated, {BROKEN} broken"
        story.heading("More events land", remark)
        more = feed.events(SECOND, [3]) + feed.events(LATE, [0, 1])
        story.land(more + feed.corrections(CORRECTED) + feed.repeats(first, REPEATED), 3, broken=BROKEN)

        story.heading("Crash", "the pipeline is killed in the middle")
        story.ingest_killed(expected=3)

        story.heading("Run again", "Spark replays micro-batches; those that the log has are not committed again")
        story.ingest()
        story.check_events()
        story.run("merge", "aggregate")
        story.check_latest()

        maintain(story)
        story.check_events()
        story.check_latest()
        stop_spark()
    console.print(
        f"\nEverything checked, in {time.perf_counter() - begin:.0f} s. "
        "To get a project like this one: [bold]parketto init-pipeline DIR[/]"
    )
    if kept:
        console.print(f"Look at its data: [bold]parketto health {Path(kept, 'demo', 'data', 'events')}[/]")


def stop_spark() -> None:
    """Stop the session that the steps have used."""
    from parketto.engines.spark.session import active_session

    if (session := active_session()) is not None:
        session.stop()


if __name__ == "__main__":
    main()
