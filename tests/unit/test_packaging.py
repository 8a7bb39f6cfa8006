"""What surrounds the code: metadata of the package, the workflow, templates and the recipe of a release."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]


def test_the_metadata_of_the_wheel() -> None:
    found = metadata.metadata("parketto")
    assert found["Author"]
    assert {"parquet", "spark", "duckdb"} <= set(found["Keywords"].split(","))
    urls = {entry.partition(",")[0] for entry in found.get_all("Project-URL") or ()}
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= urls
    assert {"spark", "duckdb", "progress", "maintenance"} <= set(found.get_all("Provides-Extra") or ())


def test_the_workflow_runs_the_tests_that_developers_run() -> None:
    workflow = yaml.safe_load((PROJECT / ".github/workflows/test.yml").read_text())
    commands = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "make test" in commands
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert {command.removeprefix("make ") for command in commands if command} <= set(targets)


def test_the_forms_of_issues_are_valid() -> None:
    for path in (PROJECT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form), path
            assert all(part["type"] in {"markdown", "textarea", "input", "dropdown"} for part in form["body"]), (
                path
            )


def test_the_recipe_of_a_release_names_programs_that_exist() -> None:
    recipe = (PROJECT / "docs/releasing.md").read_text()
    makefile = (PROJECT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", recipe):
        assert f"\n{target}: " in makefile, target
    for path in re.findall(r"`(\.ci/[a-z_]+\.py|src/[a-z/_]+\.py|[A-Z]+\.md)`", recipe):
        assert (PROJECT / path).is_file(), path
