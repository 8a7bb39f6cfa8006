"""Pages that are files of the repository, with links that work on the site, and lists of the public names."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path
from typing import Any

import parketto

_INCLUDED = re.compile(r'--8<-- "(\w+\.md)"\s*')
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
_NAMES = re.compile(r"^public names: (\w+)$", re.M)
_LISTED = re.compile(r"^::: parketto\.(\w+)$", re.M)
_PAGES = {"README.md": "index.md", "docs/decisions/README.md": "decisions/README.md"} | {
    f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")
}


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """A page; one that only includes a file becomes that file."""
    found = _INCLUDED.fullmatch(markdown)
    if found is not None:
        text = (Path(config.config_file_path).parent / found[1]).read_text(encoding="utf-8")
        return _LINK.sub(_relinked, text)
    return _NAMES.sub(_listed, markdown)


def public_names() -> dict[str, list[str]]:
    """The names of `parketto` that no page of the reference lists by itself: results and errors."""
    listed = {
        name for page in Path(__file__).parent.glob("reference/*.md") for name in _LISTED.findall(page.read_text())
    }
    names: dict[str, list[str]] = {"results": [], "errors": []}
    for name in sorted(set(parketto.__all__) - listed):
        public = getattr(parketto, name)
        is_error = inspect.isclass(public) and issubclass(public, Exception)
        names["errors" if is_error else "results"].append(name)
    return names


def _listed(line: re.Match[str]) -> str:
    return "\n".join(_directive(name) for name in public_names()[line[1]])


def _directive(name: str) -> str:
    if not typing.is_typeddict(getattr(parketto, name)):
        return f"::: parketto.{name}"
    # The docstring of a mapping lists its keys (docs/docstrings.py).
    options = "{members: false, inherited_members: false, docstring_section_style: table}"
    return f"::: parketto.{name}\n    options: {options}"


def _relinked(link: re.Match[str]) -> str:
    image, text, path, anchor = link.groups(default="")
    page = _PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    return text if page is None else f"{image}[{text}]({page}{anchor})"  # other files are not part of the site
