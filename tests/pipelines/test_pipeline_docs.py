"""The table of options in docs/pipelines.md is complete, and systemd accepts the units of docs/scheduling.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.documents import PAGES
from parketto.datasource.options import DATASET, STREAM, STREAM_READ, WRITE


def test_every_option_is_explained() -> None:
    table = PAGES["docs/pipelines.md"].read_text().partition("| for | option |")[2].partition("\n\n")[0]
    missing = [name for name in {**DATASET, **STREAM_READ, **WRITE, **STREAM} if f"`{name}`" not in table]
    assert not missing


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    page = PAGES["docs/scheduling.md"].read_text()
    block = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)[0].replace("/srv/venv/bin/python", sys.executable)
    for name, text in re.findall(r"# /etc/systemd/system/(\S+)\n(.*?)(?=\n# /etc|\Z)", block, re.DOTALL):
        (tmp_path / name).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    assert [Path(unit).name for unit in units] == ["events.service", "events.timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "events." in line]
    assert not complaints
