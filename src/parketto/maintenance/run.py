"""Run the policies of a file: one dataset after the other."""

from __future__ import annotations

import os
import time

from parketto.maintenance.files import DatasetPolicy, PolicyFile, load
from parketto.operations.apply_policy import FAILURES, was_stopped
from parketto.operations.budget import Meter
from parketto.progress import ProgressOption
from parketto.results import LeftBecause, MaintenanceAction, MaintenanceLeft, MaintenanceRun


def run(
    policies: str | os.PathLike[str] | PolicyFile,
    *,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> MaintenanceRun:
    """Maintain the datasets of a policy file, in its order.

    A dataset that cannot be opened or read is reported in `left`, and the run goes on with the next one.

    Args:
        policies: The path of a policy file, or what `load` returns.
        dry_run: Only report what would be done.
        progress: True to show it, or a callback that gets a `Progress` from each operation.

    Raises:
        FileNotFoundError: There is no such policy file.
        ValueError: The policy file is not valid; nothing was changed.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow as pa
        >>> from parketto import Dataset
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> events = Dataset(folder / "events", engine="pyarrow")
        >>> for n in range(5):
        ...     _ = events.write(pa.table({"n": [n]}))
        >>> _ = (folder / "policy.yml").write_text('''
        ... datasets:
        ...   - path: events
        ...     engine: pyarrow
        ...     compact: {small_files: 3}
        ... ''')
        >>> [(each["operation"], each["files_after"]) for each in run(folder / "policy.yml").actions]
        [('compact', 1)]
        >>> run(folder / "policy.yml")
        <MaintenanceRun: nothing to do in 1 dataset>
    """
    started = time.monotonic()
    found = policies if isinstance(policies, PolicyFile) else load(policies)
    meter = Meter(found.budget)
    actions: list[MaintenanceAction] = []
    left: list[MaintenanceLeft] = []
    for each in found.datasets:
        if refusal := meter.refuses():
            left.append(_unexamined(each, "budget", refusal))
            continue
        try:
            part = each.open()._maintain(each, meter, dry_run=dry_run, progress=progress)
        except FAILURES as error:
            if was_stopped(error):
                raise
            left.append(_unexamined(each, "error", str(error)))
        else:
            actions += part.actions
            left += part.left
    return MaintenanceRun(
        datasets=[each.path for each in found.datasets],
        dry_run=dry_run,
        actions=actions,
        left=left,
        seconds=round(time.monotonic() - started, 3),
    )


def _unexamined(dataset: DatasetPolicy, because: LeftBecause, details: str) -> MaintenanceLeft:
    return MaintenanceLeft(
        dataset=dataset.path, operation=None, partition=None, reason="", because=because, details=details, bytes=0
    )
