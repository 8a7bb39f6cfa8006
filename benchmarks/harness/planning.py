"""Planning without data: what the driver needs for a dataset of very many files, from footers that are made up.

It is what an operation has once it has listed the files and knows their footers. If planning begins from something
else one day, `described` and `planned` are what to change.
"""

from __future__ import annotations

import random

import pyarrow as pa

from parketto.arguments import Thresholds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.parquet.snapshot import Snapshot
from parketto.planning.rewrite import RewritePlan, plan_compaction
from parketto.planning.statistics import maintenance_stats

FILES_PER_PARTITION = 100
TARGET_MB = 128
_MEAN_BYTES = 4 * 2**20
_BYTES_PER_ROW = 50
_SCHEMA = pa.schema(
    {"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "value": pa.float64(), "note": pa.string()}
)


def described(count: int) -> Snapshot:
    """So many files of 4 MB or so, in folders of a hundred."""
    rng = random.Random(7)
    files = []
    for number in range(count):
        day = number // FILES_PER_PARTITION
        size = int(_MEAN_BYTES * (0.5 + rng.random()))
        rows = size // _BYTES_PER_ROW
        files.append(
            FileInfo(
                path=f"/data/events/day={day}/part-{number:07d}.parquet",
                size_bytes=size,
                num_rows=rows,
                partition=(("day", str(day)),),
                fingerprint=f"{number}-{size}",
                schema=_SCHEMA,
                codec="snappy",
                row_groups=(RowGroupInfo(rows, 2 * size, codec="snappy"),),
            )
        )
    return Snapshot("/data/events", tuple(files))


def planned(snapshot: Snapshot) -> RewritePlan:
    """All that happens between footers and tasks: one schema, groups of files, statistics of a dry run."""
    plan = plan_compaction(snapshot.unified().files, Thresholds.of(TARGET_MB, None))
    maintenance_stats(plan, dry_run=True)
    return plan


def check(plan: RewritePlan, snapshot: Snapshot) -> None:
    """Whether every file is in the plan once, and every partition becomes a few files."""
    found = sorted(file.path for file in plan.files)
    if found != sorted(file.path for file in snapshot.files):
        raise AssertionError("the plan lost files, or has some of them twice")
    outputs = sum(group.outputs for group in plan.groups)
    if not outputs <= len(found) / 10:
        raise AssertionError(f"the plan leaves {outputs:,} files of {len(found):,}")
