"""What scripts and schedulers rely on: exit codes, streams, JSON, and how little is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from helpers import cli_documents, oracle
from helpers.cli import COMMAND, closed_schema, environment, fails, fresh, lines, parketto, result, small_dataset
from parketto import errors
from parketto.cli import json_schemas
from parketto.cli.exits import Exit, exit_code, sentence
from parketto.cli.queries import _explained
from parketto.errors import InvalidArgument

HEAVY = {"pyspark", "duckdb", "polars", "pandas", "yaml", "pyarrow.dataset", "sqlglot"}


@pytest.fixture
def events(tmp_path: Path) -> str:
    return small_dataset(tmp_path / "events")


def imported(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\n"
        "from parketto.cli.app import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end: code = end.code\n"
        "print('|'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment()
    )
    return set(done.stderr.split("|"))


class TestStart:
    """Help and health are quick because they import little."""

    def test_help_imports_neither_engines_nor_the_dataset(self) -> None:
        assert not (HEAVY | {"parketto.dataset", "rich"}) & imported("--help")

    def test_health_imports_no_engine(self, events: str) -> None:
        found = imported("health", events)
        assert not HEAVY & found
        assert {name for name in found if name.startswith("parketto.engines.")} <= {
            *("parketto.engines.base", "parketto.engines.registry"),
            *("parketto.engines.pyarrow", "parketto.engines.pyarrow.engine", "parketto.engines.threads"),
        }

    def test_a_process_ends_without_a_word(self, events: str) -> None:
        """DuckDB complains if garbage of its own is left at the end."""
        fresh("health", events, "--engine", "duckdb")

    def test_health_imports_no_operation_and_nothing_that_reads_or_writes_rows(self, events: str) -> None:
        found = imported("health", events)
        operations = {name for name in found if name.startswith("parketto.operations.")}
        assert operations <= {f"parketto.operations.{name}" for name in ("check", "context", "running")}
        rows = (
            "parketto.merge",
            "parketto.expressions.sql",
            "parketto.parquet.reader",
            "parketto.parquet.encoders",
        )
        assert not [name for name in found if name.startswith((*rows, "parketto.tasks.write"))]

    def test_other_looks_import_no_engine(self, events: str) -> None:
        assert not HEAVY & imported("head", events)
        assert not HEAVY & imported("history", events)

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion(self, shell: str) -> None:
        """As the shells ask for it. Typer's own script is what `--install-completion` installs."""
        asked = {
            "bash": {"COMP_WORDS": "parketto un", "COMP_CWORD": "1"},
            "zsh": {"_TYPER_COMPLETE_ARGS": "parketto un"},
            "fish": {"_TYPER_COMPLETE_ARGS": "parketto un", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        env = environment(_PARKETTO_COMPLETE=f"complete_{shell}", **asked)
        program = os.path.join(os.path.dirname(sys.executable), "parketto")
        found = subprocess.run([program], capture_output=True, text=True, check=False, env=env).stdout
        assert "undo" in found
        assert "unify-schema" in found
        assert "compact" not in found


class TestExitCodes:
    """One place maps errors to codes."""

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (errors.InvalidArgument("x"), Exit.FAILED),
            (errors.CommitFailed("x"), Exit.FAILED),
            (errors.CommitConflict("x"), Exit.CONFLICT),
            (errors.LockTimeout("x"), Exit.CONFLICT),
            (errors.CommitStateUnknown("x"), Exit.NEEDS_RECOVERY),
            (OSError("x"), Exit.FAILED),
            (KeyboardInterrupt(), Exit.INTERRUPTED),
        ],
    )
    def test_of_errors(self, error: BaseException, code: Exit) -> None:
        assert exit_code(error) == code

    def test_an_interrupted_commit(self) -> None:
        """The commit that Ctrl-C has undone is an interrupt; one in an unknown state needs recovery."""
        undone, unknown = errors.CommitFailed("x"), errors.CommitStateUnknown("x")
        undone.__cause__ = unknown.__cause__ = KeyboardInterrupt()
        assert (exit_code(undone), exit_code(unknown)) == (Exit.INTERRUPTED, Exit.NEEDS_RECOVERY)

    def test_hints_name_the_options(self) -> None:
        assert "parketto recover PATH" in sentence(errors.CommitStateUnknown("half done."))
        assert "--engine duckdb" in sentence(errors.EngineUnavailable("PySpark is missing"))
        wrong = errors.InvalidArgument("Pass schema='evolve' to add columns, or use mode='overwrite'")
        assert sentence(wrong) == "Pass --schema evolve to add columns, or use --mode overwrite"
        twice = errors.InvalidArgument("Use strategy='deduplicate', or make the keys unique first")
        assert sentence(twice) == "Use --strategy deduplicate, or make the keys unique first"
        changed = errors.CannotUndo("Undo commit 5 first, or restore(to=3). Nothing was changed")
        assert sentence(changed) == "Undo commit 5 first, or restore --to 3. Nothing was changed"

    def test_a_missing_dataset(self, tmp_path: Path) -> None:
        assert str(tmp_path / "none") in fails(1, "health", tmp_path / "none")
        assert "Traceback" in parketto("health", tmp_path / "none", "--debug", check=False).stderr

    @pytest.mark.parametrize("option", [[], ["--debug"]])
    def test_tracebacks_that_libraries_log(self, events: str, option: list[str]) -> None:
        """Py4J logs one when Ctrl-C interrupts a call of the JVM."""
        code = (
            "import logging, sys\n"
            "from parketto import Dataset\n"
            "from parketto.cli.app import main\n"
            "def interrupted(*_, **__):\n"
            "    try:\n"
            "        raise KeyboardInterrupt\n"
            "    except KeyboardInterrupt:\n"
            "        logging.exception('KeyboardInterrupt while sending command.')\n"
            "        raise\n"
            "Dataset.health = interrupted\n"
            f"sys.argv = ['parketto', 'health', {events!r}, *{option!r}]\n"
            "main()\n"
        )
        run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
        assert run.returncode == Exit.INTERRUPTED
        assert ("Traceback" in run.stderr) == bool(option), run.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            "history",
            "undo --yes",
            "vacuum",
            "recover",
            "restore --to 1 --yes",
            "diff 1",
            "head",
            "check",
            "report",
        ],
    )
    def test_a_mistyped_path(self, tmp_path: Path, arguments: str) -> None:
        command, *more = arguments.split()
        path = tmp_path / "evnts"
        assert f"no dataset at '{path}'" in fails(1, command, path, *more)
        assert list(tmp_path.iterdir()) == []

    def test_sql_without_tables(self) -> None:
        assert "No table was named: add for example events=data/events" in fails(1, "sql", "SELECT * FROM events")
        assert "No table was named" not in fails(1, "sql", "SELEC 1")

    def test_a_missing_package_is_one_sentence(self, tmp_path: Path) -> None:
        assert sentence(ImportError("Please install gcsfs")) == "Please install gcsfs"

    def test_wrong_command_lines(self, events: str) -> None:
        for arguments in (
            ["compact"],
            ["compact", events, "--nope"],
            ["nope"],
            ["read", events, "--format", "xml"],
        ):
            done = parketto(*arguments, check=False)
            assert (done.returncode, done.stdout) == (2, "")
            assert "Traceback" not in done.stderr
        assert "--set 'price' is not of the form name=value" in fails(
            2, "update", events, "--where", "id = 1", "--set", "price", "--yes"
        )

    def test_bad_conditions_change_nothing(self, events: str) -> None:
        before = oracle.file_state(events)
        assert "columns not found: 'nope'" in fails(1, "delete", events, "--where", "nope = 1", "--yes")
        assert oracle.file_state(events) == before

    def test_a_conflict(self, events: str, tmp_path: Path) -> None:
        """The files of a backup cannot come back: a later operation has changed the same ones."""
        stats = result("delete", events, "--where", "id = 7", "--yes", "--backup", tmp_path / "backups")
        result("delete", events, "--where", "id < 40", "--yes")
        done = parketto("restore", events, stats["backup_path"], "--yes", "--json", check=False)
        assert (done.returncode, done.stdout) == (3, "")
        document = json.loads(done.stderr)
        jsonschema.validate(document, closed_schema("error"))
        assert (document["error"]["type"], document["error"]["exit_code"]) == ("CommitConflict", 3)

    def test_health_fails_on_what_is_asked_for(self, tmp_path: Path) -> None:
        root = small_dataset(tmp_path / "many", files=20)
        assert parketto("health", root, "--fail-on", "drift,skew").returncode == 0
        done = parketto("health", root, "--fail-on", "drift,small-files", check=False)
        assert (done.returncode, done.stderr) == (5, "")
        assert done.stdout.startswith("Needs attention: 80 rows in 40 files")
        assert f"parketto compact {root}" in done.stdout
        assert parketto("health", root, "--fail-on", "any", check=False).returncode == 5
        assert "choices: 'any', 'damaged-files'" in fails(2, "health", root, "--fail-on", "nope")
        result("health", root)


def test_every_remedy_is_a_command(tmp_path: Path) -> None:
    """What health says is what can be typed."""
    import shlex

    from parketto.health.commands import Commands

    root = small_dataset(tmp_path / "events")
    commands = Commands(root, 64)
    remedies = [
        commands.compact("", compression="zstd"),
        commands.suggest(["id", "price"], ""),
        commands.optimize(["id", "price"], ""),
        commands.repartition([], ""),
        commands.repartition(["day"], ""),
        commands.unify_schema("", {"id": "bigint"}),
        commands.check(""),
        commands.vacuum(""),
    ]
    for remedy in remedies:
        program, command, *arguments = shlex.split(remedy["command"])
        assert program == "parketto"
        parketto(command, *arguments, *(["--yes"] if command in ("repartition", "vacuum") else []))


class TestJson:
    """The published schemas."""

    def test_are_what_the_code_says(self) -> None:
        """Run `make cli-reference` after a change."""
        published = {path.name: path.read_text() for path in cli_documents.SCHEMAS.glob("*.json")}
        assert published == cli_documents.schemas()

    def test_are_shown(self) -> None:
        assert json.loads(parketto("json-schema", "compact").stdout) == json_schemas.read("compact")
        assert "error" in " ".join(lines("json-schema"))
        assert "there is no JSON Schema for 'nope'" in fails(2, "json-schema", "nope")

    def test_are_valid(self) -> None:
        for name in json_schemas.published():
            jsonschema.Draft202012Validator.check_schema(json_schemas.read(name))

    def test_errors_are_documents_too(self, tmp_path: Path) -> None:
        done = parketto("health", tmp_path / "none", "--json", check=False)
        assert (done.returncode, done.stdout) == (1, "")
        document = json.loads(done.stderr)
        jsonschema.validate(document, closed_schema("error"))
        assert document["error"]["type"] == "DatasetNotFound"


class TestHistory:
    """Undo, restore, diff and vacuum, which ask."""

    def test_undo_and_restore(self, events: str) -> None:
        before = oracle.file_state(events)
        result("delete", events, "--where", "id < 40", "--yes")
        assert "this would undo commit 5, bring back 4 files" in fails(2, "undo", events)
        assert lines("undo", events, "--dry-run")[0].startswith("undo would undo commit 5, bring back 4 files")
        assert result("undo", events, "--yes")["undone"] == [5]
        assert oracle.file_state(events) == before
        result("compact", events)
        assert result("restore", events, "--to", 4, "--yes")["undone"][-1] == 7
        assert oracle.file_state(events) == before
        assert result("history", events, "-n", 2)[1]["undone_by"] == 8
        assert "pass the path of a backup, or --to" in fails(2, "restore", events)

    def test_restore_of_a_backup(self, events: str, tmp_path: Path) -> None:
        stats = result("delete", events, "--where", "id < 40", "--yes", "--backup", tmp_path / "backups")
        assert "this would replace files" in fails(2, "restore", events, stats["backup_path"])
        assert result("restore", events, stats["backup_path"], "--yes")["rows_restored"] == 40

    def test_time_travel_and_diff(self, events: str) -> None:
        result("update", events, "--where", "id = 7", "--set", "price=0", "--yes")
        rows = parketto("read", events, "--as-of", 4, "--where", "id = 7", "--json").stdout
        assert json.loads(rows)["price"] == 7.0
        found = result("diff", events, 4, "--keys", "id")
        assert (found["rows_added"], found["rows_removed"], found["rows_changed"]) == (0, 0, 1)
        changed = json.loads(parketto("diff", events, 4, 5, "--keys", "id", "--rows", "changed", "--json").stdout)
        assert (changed["before"]["price"], changed["after"]["price"]) == (7.0, 0.0)
        assert "needs --keys" in fails(2, "diff", events, 4, "--rows", "changed")
        assert lines("diff", events, 4)[0] == "commit 4 to 5: 1 row added, 1 removed"

    def test_vacuum_is_a_dry_run_by_default(self, events: str) -> None:
        result("compact", events)
        assert result("vacuum", events, "--older-than", "0s")["dry_run"]
        refused = fails(2, "vacuum", events, "--older-than", "0", "--no-dry-run")
        assert "this would remove 8 files" in refused
        assert result("vacuum", events, "--older-than", "0", "--yes")["files_removed"] == 8
        assert "is not a time span" in fails(2, "vacuum", events, "--older-than", "soon")
        assert "no longer kept" in fails(1, "undo", events, "--yes")

    def test_purge(self, events: str) -> None:
        result("update", events, "--where", "id = 7", "--set", "price=0", "--yes")
        purged = result("delete", events, "--where", "id = 7", "--purge", "--yes")["purged_files"]
        assert {each["location"] for each in purged} == {"dataset", "history"}

    def test_purge_by_keys_asks_also_if_only_the_history_has_the_rows(self, events: str, tmp_path: Path) -> None:
        result("delete", events, "--where", "id = 7", "--yes")
        (tmp_path / "requests.csv").write_text("id,why\n7,asked\n8888,asked\n")
        purge = ("delete", events, "--keys-from", tmp_path / "requests.csv", "--keys", "id", "--purge")
        assert "this would delete 0 rows of 79, and purge 1 file of history and backups" in fails(2, *purge)
        assert [each["location"] for each in result(*purge, "--yes")["purged_files"]] == ["history"]
        assert result(*purge)["purged_files"] == []


def test_the_demo_tells_a_story(tmp_path: Path) -> None:
    shown = lines("demo", tmp_path / "demo")
    assert "└── 24 files → 3, the same rows" in shown
    assert "└── 3 files back: 6,000 rows again" in shown
    (next_commands,) = [at for at, line in enumerate(shown) if line == "Look at it:"]
    for line in shown[next_commands + 1 :]:
        done = subprocess.run(
            [*COMMAND, *_words(line)], capture_output=True, text=True, check=False, env=environment()
        )
        assert done.returncode == 0, done.stderr
    assert "is not an empty folder" in fails(2, "demo", tmp_path / "demo")


def _words(line: str) -> list[str]:
    import shlex

    return shlex.split(line[4:])[1:]


def test_nothing_is_coloured_on_a_pipe(events: str) -> None:
    assert "\x1b" not in fresh("health", events).stdout


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        ("[UNRESOLVED_COLUMN] `foo` cannot be resolved; line 1 pos 7", ";\n'Project ['foo]\n+- SubqueryAlias x\n"),
        ("[PARSE_SYNTAX_ERROR] Error near 'SELEC' (line 1, pos 0)", "\n\n== SQL ==\nSELEC 1\n^^^\n"),
    ],
)
def test_errors_of_spark_are_one_sentence_without_the_plan(shown: str, rest: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(InvalidArgument) as found, _explained({"events": "events"}):
        raise AnalysisException(f"\n{shown}{rest}")
    assert str(found.value) == f"the query failed: {shown}"
