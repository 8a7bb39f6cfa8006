"""The command line, and the project that `parketto init-pipeline` creates. Nothing here starts Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parketto.engines.spark import programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


def parketto(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parketto.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_a_new_project_has_its_name_and_its_paths(tmp_path: Path) -> None:
    done = parketto("init-pipeline", "clicks", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cd clicks" in done.stdout
    project = tmp_path / "clicks"
    texts = {
        path.relative_to(project).as_posix(): path.read_text() for path in project.rglob("*") if path.is_file()
    }
    assert sorted(texts) == [
        ".gitignore",
        "README.md",
        "run.py",
        "spark-pipeline.yml",
        "transformations/ingest.py",
    ]
    assert all(name in done.stdout for name in texts)
    assert not any("{{" in text for text in texts.values())
    assert f"name: clicks\nstorage: {project.as_uri()}/storage\n" in texts["spark-pipeline.yml"]
    assert (project / "landing").is_dir()


def test_the_example_is_what_the_template_creates(tmp_path: Path) -> None:
    """The linters check the example; the template has no names of Python modules."""
    parketto("init-pipeline", tmp_path / "example")
    for name in ("run.py", "transformations/ingest.py"):
        assert (EXAMPLE / name).read_text() == (tmp_path / "example" / name).read_text()
    own, template = (
        [line.partition(":")[0] for line in (folder / "spark-pipeline.yml").read_text().splitlines()]
        for folder in (EXAMPLE, tmp_path / "example")
    )
    assert own == template


@pytest.mark.parametrize("name", ["9lives", "a b", "a/../b"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    done = parketto("init-pipeline", tmp_path / "new", "--name", name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the name of the pipeline is '{name}'")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = parketto("init-pipeline", tmp_path, "--name", "x")
    assert done.returncode == 1
    assert "is not an empty folder; nothing was created" in done.stderr
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_pipeline_inside_of_spark_submit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would share the JVM of the other program."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    done = parketto("spark-pipelines", "run")
    assert done.returncode == 1
    assert "started by spark-submit" in done.stderr


def test_options_of_spark_submit_reach_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """`spark-pipelines` itself has no options for them: its script takes them away."""
    monkeypatch.setattr(os, "environ", {"SPARK_REMOTE": "sc://elsewhere", "PYSPARK_SUBMIT_ARGS": "pyspark-shell"})
    arguments = ["run", "--spec=a.yml", "--master", "spark://host:7077", "--conf", "spark.a=b c", "--refresh", "x"]
    assert programs._configure(arguments) == ["run", "--spec", "a.yml", "--refresh", "x"]
    assert os.environ == {
        "MASTER": "spark://host:7077",
        "PYSPARK_SUBMIT_ARGS": "--conf 'spark.a=b c' pyspark-shell",
    }
    assert programs._configure(["init", "--name", "new"]) == ["init", "--name", "new"]
