"""The Markdown pages of the repository: their Python examples, and what these say that they print."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
}


def python_blocks(page: str) -> list[str]:
    """The Python examples of a page."""
    return re.findall(r"^```python\n(.*?)^```", PAGES[page].read_text(), re.S | re.M)


def run_page(page: str) -> None:
    """Runs the examples of a page as one script."""
    names: dict[str, object] = {"__name__": page}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)


def check_output(page: str, printed: str) -> None:
    """The comment beside or below a `print` is its output, up to an ellipsis. A page may show none at all."""
    code = "\n".join(python_blocks(page))
    shown = re.findall(r"^ *(?:print\(.*)?\)(?:  |\n *)# (.*)$", code, re.M)
    if not shown:
        return
    lines = printed.splitlines()
    assert len(re.findall(r"\bprint\(", code)) == len(shown), f"{page}: a print has no comment with its output"
    assert len(shown) == len(lines), (
        f"{page}: {len(shown)} outputs are shown, {len(lines)} lines were printed: {lines}"
    )
    for expected, line in zip(shown, lines, strict=True):
        start, ellipsis, _ = expected.partition("…")
        assert line.startswith(start) if ellipsis else line == start, f"{page} shows {expected!r}, not {line!r}"
