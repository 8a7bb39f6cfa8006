"""The documentation site: a build with warnings fails, and the reference has every public name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from helpers.documents import ROOT

pytest.importorskip("mkdocs", reason="`make docs` installs what builds the site")


def built(folder: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Builds a site of two pages with the command and the settings of `make docs`."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text("# Home\n\n## Here\n")
    (folder / "docs" / "page.md").write_text(page)
    settings = "docs_dir: docs\nhooks: []\nplugins: []\nextra_css: []\nnav: [index.md, page.md]\n"
    (folder / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{settings}")
    recipe = subprocess.run(["make", "-n", "-C", ROOT, "docs"], capture_output=True, text=True, check=True).stdout
    command = next(line for line in recipe.splitlines() if "mkdocs build" in line)
    variables, program = shlex.split(command)[:1], shlex.split(command)[1:]
    return subprocess.run(
        [ROOT / program[0], *program[1:], "--config-file", folder / "mkdocs.yml"],
        env={**os.environ, **dict(each.split("=") for each in variables)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sound_site_is_built(tmp_path: Path) -> None:
    done = built(tmp_path, "# Page\n\n[home](index.md#here)\n")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "page.html").exists()


@pytest.mark.parametrize(
    "page",
    ["[gone](missing.md)", "[gone](index.md#missing)", "![gone](missing.png)", "[gone](/missing)"],
    ids=["page", "heading", "image", "absolute"],
)
def test_a_dead_link_fails_the_build(page: str, tmp_path: Path) -> None:
    done = built(tmp_path, f"# Page\n\n{page}\n")
    assert done.returncode != 0
    assert "missing" in done.stderr


@pytest.fixture
def reference() -> str:
    """The pages of the reference, as `make docs` has built them."""
    folder = ROOT / "site" / "reference"
    if not folder.exists():
        pytest.skip("the site is not built: `make docs`")
    return "".join(page.read_text() for page in folder.rglob("*.html"))


def test_the_reference_has_every_public_name(reference: str) -> None:
    import parketto

    assert [name for name in parketto.__all__ if f'id="parketto.{name}"' not in reference] == []


def test_the_reference_has_no_internals(reference: str) -> None:
    assert re.findall(r'id="(parketto\.[\w.]*\b_[a-z]\w*)"', reference) == []


def test_results_show_their_keys(reference: str) -> None:
    from parketto import MaintenanceStats

    keys = MaintenanceStats.__annotations__
    assert [key for key in keys if f'"parketto.MaintenanceStats.{key}"' not in reference] == []


def test_examples_are_code_and_not_quotations(reference: str) -> None:
    assert "<blockquote>" not in reference
    assert reference.count("&gt;&gt;&gt; ") > 100
