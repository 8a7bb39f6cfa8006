"""The examples of docs/pipelines.md run and print what they say; its table of options is complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parketto.datasource.options import DATASET, READ, STREAM, WRITE

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()


def test_examples_print_what_they_say(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for block in blocks:
        exec(compile(block, "pipelines.md", "exec"), names)
    expected = [line.partition("  # ")[2] for block in blocks for line in block.splitlines() if "print(" in line]
    assert capsys.readouterr().out.splitlines() == expected


def test_every_option_is_explained() -> None:
    table = PAGE.partition("| for | option |")[2].partition("\n\n")[0]
    missing = [name for name in {**DATASET, **READ, **WRITE, **STREAM} if f"`{name}`" not in table]
    assert not missing


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    block = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[0].replace("/srv/venv/bin/python", sys.executable)
    for name, text in re.findall(r"# /etc/systemd/system/(\S+)\n(.*?)(?=\n# /etc|\Z)", block, re.DOTALL):
        (tmp_path / name).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    assert [Path(unit).name for unit in units] == ["events.service", "events.timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "events." in line]
    assert not complaints
