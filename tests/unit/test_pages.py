"""The Markdown pages: their Python examples run and print what they say, and their links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from helpers.documents import PAGES, ROOT, check_output, python_blocks, run_page

ON_SPARK = ["README.md", "docs/from-spark-jobs.md", "docs/handlers.md", "docs/pipelines.md", "docs/spark.md"]
ON_S3 = ["docs/s3.md"]
ELSEWHERE = sorted(page for page in PAGES if python_blocks(page) and page not in (*ON_SPARK, *ON_S3))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_examples_print_what_they_say(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_page(page)
    check_output(page, capsys.readouterr().out)


@pytest.mark.parametrize("page", ON_SPARK)
def test_examples_on_spark(
    page: str, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user runs them: on Spark, which is the default."""
    monkeypatch.delenv("PARKETTO_ENGINE")
    run_page(page)
    check_output(page, capsys.readouterr().out)


@pytest.mark.parametrize("page", ON_S3)
def test_examples_on_s3(
    page: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With credentials and the endpoint in the environment, as a user has them."""
    from helpers.s3 import LOGIN

    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), LOGIN, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    dataclasses.replace(s3_server, bucket="lake").make_bucket()
    run_page(page)
    check_output(page, capsys.readouterr().out)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", PAGES[page].read_text(), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = unquote(link).partition("#")
        if re.match(r"\w+:", path):
            continue
        target = PAGES[page].parent / path if path else PAGES[page]
        assert target.exists(), f"{page} links to {link}, which does not exist"
        assert not anchor or anchor in _anchors(target), f"{page} links to {link}, but there is no such heading"


def _anchors(path: Path) -> set[str]:
    """The anchors of headings, as GitHub and MkDocs form them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


def test_commands_exist() -> None:
    """The commands of `parketto` that pages show, and their options."""
    from typer.main import get_command

    from parketto.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for page, path in PAGES.items():
        for name, rest in re.findall(r"^(?:\$ |.*/bin/)parketto ([a-z-]+)(.*)$", path.read_text(), re.M):
            assert name in commands, f"{page} shows parketto {name}, which does not exist"
            known = {option for parameter in commands[name].params for option in parameter.opts}
            unknown = [word for word in re.findall(r" (--[a-z-]+)", rest.partition("  #")[0]) if word not in known]
            assert not unknown or name.startswith("spark-"), f"{page}: parketto {name} has no {unknown}"


def test_readme_is_short() -> None:
    """It says what Parketto is and links to the rest."""
    assert len(PAGES["README.md"].read_text().splitlines()) <= 120


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(menu) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))
