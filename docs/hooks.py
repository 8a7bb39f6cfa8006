"""Includes files of the repository in the documentation, with links that work on the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_INCLUDED = re.compile(r'--8<-- "(\w+\.md)"\s*')
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
_PAGES = {"README.md": "index.md", "docs/decisions/README.md": "decisions/README.md"} | {
    f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")
}


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """A page; one that only includes a file becomes that file."""
    found = _INCLUDED.fullmatch(markdown)
    if found is None:
        return markdown
    text = (Path(config.config_file_path).parent / found[1]).read_text(encoding="utf-8")
    return _LINK.sub(_relinked, text)


def _relinked(link: re.Match[str]) -> str:
    text, path, anchor = link.groups(default="")
    page = _PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    return text if page is None else f"[{text}]({page}{anchor})"  # other files are not part of the site
