"""The types that users' own programs see (`py.typed`): mypy, strict, on a script outside of the project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".mypy_cache" / "users"
# Lines that end with `# error: <code>` are mistakes that mypy must find. All other lines are right.
SCRIPT = """
from pathlib import Path
from typing import assert_type

import parketto
from parketto import (
    Advice,
    AlterStats,
    ChangeStats,
    CheckReport,
    CommitConflict,
    Dataset,
    EditStats,
    FileInfo,
    MaintenanceRun,
    MaintenanceStats,
    MergeStats,
    PartitionInfo,
    Progress,
    RestoreStats,
    WritePlan,
    WriteStats,
    sql,
)


def show(state: Progress) -> None:
    print(state.operation, state.done / state.total)


events = Dataset(Path("events"), engine="pyarrow", retries=5)
assert_type(events.write("rows.parquet", partition_by="day"), WriteStats)
assert_type(events.write("rows.parquet", dry_run=True), WritePlan)
assert_type(events.write_from("landing/*.csv", progress=show), WriteStats)
assert_type(events.compact(progress=True), MaintenanceStats)
assert_type(events.optimize(["user"], curve="hilbert", progress=show), MaintenanceStats)
assert_type(events.delete("price > 100", progress=False), EditStats)
assert_type(events.update("price > 100", {"price": sql("price / 2")}), EditStats)
assert_type(events.merge("changes.parquet", "id", strategy="upsert"), MergeStats)
assert_type(events.apply_changes("changes.parquet", "id", sequence_by="at"), ChangeStats)
assert_type(events.deduplicate("id"), EditStats)
assert_type(events.alter(drop="old"), AlterStats)
assert_type(events.restore("backups/1"), RestoreStats)
assert_type(events.check(deep=True), CheckReport)
assert_type(events.suggest(["user = 7"]), Advice)
assert_type(events.maintain({"compact": {"small_files": 20}}), MaintenanceRun)
assert_type(events.repartition("day"), WriteStats)
assert_type(events.files(), list[FileInfo])
assert_type(events.partitions(), list[PartitionInfo])
assert_type(events.compact()["after_file_count"], int)
assert_type(events.files()[0].size_bytes, int)
assert_type(parketto.__version__, str)
assert_type(parketto.maintenance.run("policy.yml", dry_run=True), MaintenanceRun)

try:
    events.delete(keys="gone.parquet", key_columns=["id"])
except CommitConflict as conflict:
    print(conflict)

events.compact()["files"]  # error: typeddict-item
events.compact(target_mb=64)  # error: call-arg
events.compact(progress="yes")  # error: arg-type
events.merge("changes.parquet", "id", strategy="replace")  # error: arg-type
events.write("rows.parquet", mode="insert")  # error: call-overload
Dataset(b"events")  # error: arg-type
parketto.Datasets("events")  # error: attr-defined
"""


def test_mypy_knows_the_public_types(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={CACHE}", script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = set(re.findall(r"^script\.py:(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, re.MULTILINE))
    lines = SCRIPT.splitlines()
    marked = {
        (str(number), line.partition("# error: ")[2])
        for number, line in enumerate(lines, 1)
        if "# error: " in line
    }
    assert found == marked, checked.stdout + checked.stderr
