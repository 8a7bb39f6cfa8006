"""docs/cli.md: its reference is what `--help` says, and its examples print what they show."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from helpers import cli_documents
from helpers.cli import COMMAND, environment, parketto


def test_the_reference_is_what_help_says() -> None:
    """Run `make cli-reference` after a change."""
    page = cli_documents.PAGE.read_text()
    assert page == cli_documents.with_reference(page, cli_documents.reference())


def test_examples_print_what_they_show(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", cli_documents.PAGE.read_text(), re.S)
    steps = [step for block in blocks for step in _steps(block)]
    assert len(steps) > 10
    for command, expected in steps:
        code, printed = _run(command, tmp_path)
        assert code == int((re.findall(r"# exit code (\d)", command) or ["0"])[0]), (command, printed)
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, printed, re.S), (command, printed)


def _steps(block: str) -> list[tuple[str, str]]:
    """The commands of an example with their output. The demo prints commands itself."""
    if block.startswith("$ parketto demo"):
        command, _, output = block.partition("\n")
        return [(command[2:], output)]
    found = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in found)]


def _run(command: str, folder: Path) -> tuple[int, str]:
    """Run a command, in a shell if it needs one."""
    if not re.search(r"[|>]", re.sub(r'"[^"]*"', "", command)):
        done = parketto(*shlex.split(command, comments=True)[1:], cwd=folder, check=False)
        return done.returncode, done.stdout + done.stderr
    text = re.sub(r"\bparketto ", f"{shlex.join(COMMAND)} ", command)
    shell = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    return shell.returncode, shell.stdout + shell.stderr
