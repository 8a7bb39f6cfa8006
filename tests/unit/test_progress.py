"""Progress of all operations: to a function, as a bar on a terminal or in a notebook, or as lines."""

from __future__ import annotations

import inspect
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parketto import Dataset, Progress, progress
from parketto.errors import InvalidArgument

LONG_OPERATIONS = (
    "alter",
    "apply_changes",
    "check",
    "compact",
    "deduplicate",
    "delete",
    "maintain",
    "merge",
    "optimize",
    "repartition",
    "suggest",
    "unify_schema",
    "update",
    "write",
)
COMPACT = """
    import sys, pyarrow as pa
    from parketto import Dataset
    events = Dataset(sys.argv[1], engine="pyarrow")
    events.compact(target_rows_per_file=2, progress=True)
"""


@pytest.fixture
def events(tmp_path: Path) -> Dataset:
    found = Dataset(tmp_path / "events", engine="pyarrow")
    for n in range(6):
        found.write(pa.table({"day": [n % 3], "id": [n], "old": ["x"]}), partition_by="day")
    return found


def run(events: Dataset, operation: str, option: Any) -> Any:
    match operation:
        case "alter":
            return events.alter(drop="old", progress=option)
        case "apply_changes":
            changes = pa.table({"day": [0], "id": [77], "old": ["y"]})
            return events.apply_changes(changes, "day", sequence_by="id", progress=option)
        case "check" | "compact":
            return getattr(events, operation)(progress=option)
        case "deduplicate":
            return events.deduplicate("day", progress=option)
        case "delete":
            return events.delete("id = 2", progress=option)
        case "maintain":
            return events.maintain({"compact": {"small_files": 1}}, progress=option)
        case "merge":
            return events.merge(pa.table({"day": [0], "id": [0], "old": ["y"]}), "id", progress=option)
        case "optimize":
            return events.optimize(["id", "old"], progress=option)
        case "repartition":
            return events.repartition(None, progress=option)
        case "suggest":
            return events.suggest(["id = 2"], progress=option)
        case "unify_schema":
            return events.unify_schema(cast={"id": "double"}, progress=option)
        case "update":
            return events.update("id = 2", {"old": "z"}, progress=option)
        case "write":
            return events.write(
                pa.table({"day": [0, 0], "id": [1, 2], "old": ["", ""]}),
                max_rows_per_file=1,
                partition_by="day",
                progress=option,
            )
    raise AssertionError(operation)


def test_every_operation_with_progress_is_in_this_test() -> None:
    found = {
        name
        for name, method in inspect.getmembers(Dataset, inspect.isfunction)
        if not name.startswith("_") and "progress" in inspect.signature(method).parameters
    }
    assert found == set(LONG_OPERATIONS)


@pytest.mark.parametrize("operation", LONG_OPERATIONS)
class TestEveryOperation:
    def test_lines_where_there_is_no_terminal(
        self, events: Dataset, operation: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run(events, operation, True)
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(rf"{operation} events: done after \d+\.\d s\n", err)

    def test_other_values_are_refused_before_anything_happens(self, events: Dataset, operation: str) -> None:
        before = events.history()
        with pytest.raises(InvalidArgument, match=r"progress must be True, False or a function.*got 'yes'"):
            run(events, operation, "yes")
        assert events.history() == before


@pytest.mark.parametrize("option", [None, False])
def test_silent_by_default(events: Dataset, option: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    for operation in ("check", "write", "compact"):
        run(events, operation, option)
    assert capsys.readouterr() == ("", "")


def test_files_are_written_with_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("rows.csv").write_text("id\n1\n")
    stats = Dataset(tmp_path / "rows", engine="pyarrow").write_from(tmp_path / "rows.csv", progress=True)
    assert stats["rows_written"] == 1
    assert capsys.readouterr().err.startswith("write rows: done after")


def test_lines_are_some_seconds_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 1.0, 6.0, 7.0, 11.5, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.shown(True, "compact events") as callback:
        assert callback is not None
        for done in range(1, 5):
            callback(Progress("compact", done, 4, done * 1024, 4096))
    assert capsys.readouterr().err.splitlines() == [
        "compact events: 2 of 4, 2.0 KB of 4.0 KB",
        "compact events: 4 of 4, 4.0 KB of 4.0 KB",
        "compact events: done after 12.0 s",
    ]


def test_a_failed_operation_is_not_called_done(events: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="nope"):
        events.delete("nope = 1", progress=True)
    assert "stopped after" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terminal", "term", "rich", "expected"),
    [
        (True, "xterm", True, "_terminal_bar"),
        (True, "xterm", False, "_lines"),
        (True, "dumb", True, "_lines"),
        (False, "xterm", True, "_lines"),
    ],
)
def test_where_a_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, rich: bool, expected: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", term)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    assert progress._display().__name__ == expected


def on_terminal(code: str, *arguments: str, **environment: str) -> str:
    """What a program writes to a pseudo-terminal, which is its standard error."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment},
    ) as process:
        os.close(follower)
        written = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            written += part
        assert process.wait() == 0, written
    os.close(leader)
    return written.decode()


class TestTerminal:
    def test_a_bar_is_drawn_and_removed(self, events: Dataset) -> None:
        screen = on_terminal(COMPACT, events.path)
        assert "compact events" in screen
        assert "━" in screen
        assert "3 of 3" in screen
        assert screen.rstrip().endswith("\x1b[2K"), "the last thing is that the line of the bar is cleared"

    def test_without_colours(self, events: Dataset) -> None:
        screen = on_terminal(COMPACT, events.path, NO_COLOR="1")
        assert "3 of 3" in screen
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen)

    def test_lines_without_rich(self, events: Dataset) -> None:
        screen = on_terminal("import sys; sys.modules['rich'] = None\n" + textwrap.dedent(COMPACT), events.path)
        assert re.fullmatch(r"compact events: done after \d+\.\d s\r\n", screen)

    def test_a_title_is_no_markup(self, tmp_path: Path) -> None:
        code = """
            from parketto import Progress, progress
            with progress.shown(True, "compact [red]events[/red]") as callback:
                callback(Progress("compact", 1, 2, 0, 0))
        """
        assert "compact [red]events[/red]" in on_terminal(code)


def test_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs/sessions.md"
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        exec(compile(block, page, "exec"), names)
    out, err = capsys.readouterr()
    assert out.startswith("check: 1 of 1, ")
    assert "compact sessions: done after" in err


class TestNotebook:
    def test_a_bar_of_the_browser(self, events: Dataset) -> None:
        """In a real Jupyter kernel, without ipywidgets: HTML that is updated in place."""
        from jupyter_client.manager import start_new_kernel

        manager, client = start_new_kernel(kernel_name="python3")
        messages: list[Any] = []
        try:
            code = textwrap.dedent(COMPACT).replace("sys.argv[1]", repr(events.path))
            reply = client.execute_interactive(code, timeout=60, output_hook=messages.append)
            assert reply["content"]["status"] == "ok", reply["content"]
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        shown = [each for each in messages if each["msg_type"] in {"display_data", "update_display_data"}]
        assert [each["msg_type"] for each in shown[:2]] == ["display_data", "update_display_data"]
        assert len({each["content"]["transient"]["display_id"] for each in shown}) == 1
        last = shown[-1]["content"]["data"]["text/html"]
        assert '<progress value="3" max="3"></progress> <code>compact events</code> 3 of 3' in last
        assert "done after" in last
        assert not [each for each in messages if each["msg_type"] == "stream"]
