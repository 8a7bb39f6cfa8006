"""What scripts and schedulers rely on: exit codes, streams, JSON, and how little is imported."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
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


def imported(*arguments: str, engine: str = "pyarrow") -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\n"
        "from parketto.cli.app import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end: code = end.code\n"
        "print('|'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PARKETTO_ENGINE=engine),
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

    def test_a_check_of_footers_imports_no_engine(self, events: str) -> None:
        assert not {"pyspark", "duckdb"} & imported("check", events, engine="spark")
        assert "duckdb" in imported("check", events, "--deep", engine="duckdb")

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

    @pytest.mark.parametrize(
        ("library", "command_line"),
        [
            ("run it again, or use isolation='snapshot'", "run it again"),
            (
                "Choose one with Dataset.unify_schema(cast={'my id': ...}), or move the files",
                "Choose one with parketto unify-schema PATH --cast my id=TYPE, or move the files",
            ),
            ("select one with format=, or with a pattern", "select one with --format, or with a pattern"),
            ("otherwise name it with format=, one of 'csv'", "otherwise name it with --format, one of 'csv'"),
            (
                "quarantine needs expect= and on_violation='quarantine'",
                "quarantine needs --expect and --on-violation quarantine",
            ),
            (
                "mode='overwrite_partitions' needs partition_by, because",
                "--mode overwrite_partitions needs --partition-by, because",
            ),
            (
                "key_columns of the source not found: 'key_columns'",
                "--keys of the source not found: 'key_columns'",
            ),
            ("target_mb_per_file must be greater than 0", "--target-mb must be greater than 0"),
            ("a delete with purge=True", "a delete with --purge"),
        ],
    )
    def test_advice_names_what_the_command_line_has(self, library: str, command_line: str) -> None:
        assert sentence(errors.InvalidArgument(library)) == command_line

    def test_hints_are_not_repeated(self) -> None:
        missing = errors.EngineUnavailable("DuckDB is not installed; or use engine='pyarrow', which is there")
        assert sentence(missing) == "DuckDB is not installed; or use --engine pyarrow, which is there"
        broken = errors.ExpectationFailed(2, 1, {"v > 3": 1}, {"v > 3": {"v": 1, "day": dt.date(2026, 11, 2)}})
        assert sentence(broken) == (
            "1 of 2 rows break expectations (NULL breaks them, too): 'v > 3' by 1 row, for example {'v': 1, "
            "'day': 2026-11-02}. Correct these rows, or pass --on-violation drop, or --on-violation quarantine "
            "--quarantine PATH. Nothing was changed"
        )

    def test_change_records_have_no_schema_to_advise(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"id": [1], "v": [1]}), tmp_path / "old.parquet")
        pq.write_table(pa.table({"id": [1], "v": ["x"]}), tmp_path / "new.parquet")
        result("write", tmp_path / "ds", tmp_path / "old.parquet")
        merge = (tmp_path / "new.parquet", tmp_path / "ds", "--keys", "id")
        assert "or pass --schema cast" in fails(1, "merge", *merge)
        assert fails(1, "apply-changes", *merge, "--sequence-by", "id").endswith("Cast the source's columns first")

    def test_names_that_do_not_exist(self, events: str, tmp_path: Path) -> None:
        assert "error: columns not found: 'usr'; " in fails(1, "optimize", events, "--columns", "usr")
        done = parketto("compact", events, "--partition", "day", check=False)
        assert done.returncode == 2
        assert "'day' is not of the form COLUMN=VALUE" in done.stderr
        refused = fails(2, "read", events, "-o", tmp_path / "rows.txt")
        assert refused.endswith("is unknown: pass --format csv, json or parquet")
        refused = fails(1, "read", events, "--as-of", 99)
        assert refused.endswith("the log leads from 0 to 4. You can read the states after commits 0 to 4")

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
        assert "schema: the same in all files" in done.stdout
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

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["merge", "a", "b", "--keys", "id", "--strategy", "foo"], "Invalid value for '--strategy': 'foo' is"),
            (["compact"], "Missing argument 'PATH'"),
            (["compact", "a", "--nope"], "No such option: --nope"),
            (["compact", "a", "--partition", "day"], "Invalid value for '--partition': 'day' is not of the form"),
            (["nope"], "No such command 'nope'"),
        ],
    )
    def test_wrong_command_lines_are_documents_too(self, arguments: list[str], message: str) -> None:
        done = parketto(*arguments, "--json", check=False)
        assert (done.returncode, done.stdout) == (2, "")
        document = json.loads(done.stderr)
        jsonschema.validate(document, closed_schema("error"))
        assert (document["error"]["type"], document["error"]["exit_code"]) == ("UsageProblem", 2)
        assert document["error"]["message"].startswith(message)
        shown = parketto(*arguments, check=False).stderr
        assert message in shown
        assert shown.startswith("Usage: parketto")


class TestHistory:
    """Undo, restore, diff and vacuum, which ask."""

    def test_undo_and_restore(self, events: str) -> None:
        before = oracle.file_state(events)
        result("delete", events, "--where", "id < 40", "--yes")
        assert "this would undo commit 5, bring back 4 files" in fails(2, "undo", events)
        assert lines("undo", events, "--dry-run")[0].startswith("would undo commit 5, bring back 4 files")
        assert lines("undo", events, "--yes")[0] == "commit 5 undone, 4 files back"
        assert oracle.file_state(events) == before
        result("compact", events)
        planned = lines("restore", events, "--to", 4, "--dry-run")[0]
        assert planned.startswith("restore would undo commits 5, 6 and 7, bring back 8 files")
        assert lines("restore", events, "--to", 4, "--yes")[0] == (
            "restored: commits 5, 6 and 7 undone, 8 files back, 2 removed"
        )
        assert oracle.file_state(events) == before
        assert result("history", events, "-n", 2)[1]["undone_by"] == 8
        assert "pass the path of a backup, or --to" in fails(2, "restore", events)

    def test_restore_of_a_backup(self, events: str, tmp_path: Path) -> None:
        rows = oracle.rows(events)
        stats = result("delete", events, "--where", "id < 40", "--yes", "--backup", tmp_path / "backups")
        plan = "bring back 4 files with 40 rows, and remove 0 files"
        assert f"this would {plan}" in fails(2, "restore", events, stats["backup_path"])
        before = oracle.file_state(events)
        shown = lines("restore", events, stats["backup_path"], "--dry-run")
        assert shown[:2] == [f"restore would {plan}", "└── files that come back"]
        document = result("restore", events, stats["backup_path"], "--dry-run")
        assert (document["dry_run"], len(document["restored_files"]), document["removed_files"]) == (True, 4, [])
        assert oracle.file_state(events) == before
        restored = result("restore", events, stats["backup_path"], "--yes")
        assert restored == document | {"dry_run": False}
        assert oracle.rows(events) == rows
        again = fails(3, "restore", events, stats["backup_path"], "--dry-run")
        assert "already exists, so the backup" in again

    def test_the_folder_of_backups_is_not_a_backup(self, events: str, tmp_path: Path) -> None:
        """The message lists those inside."""
        edit = ("update", events, "--where", "id = 7", "--backup", tmp_path / "backups", "--yes")
        one = result(*edit, "--set", "price=0")["backup_path"]
        refused = fails(1, "restore", events, tmp_path / "backups", "--yes")
        assert refused.endswith(f"it has no manifest.json, but the folder of one; pass {one!r}")
        two = result(*edit, "--set", "price=1")["backup_path"]
        refused = fails(1, "restore", events, tmp_path / "backups", "--yes")
        listed = ", ".join(map(repr, sorted([one, two])))
        assert refused.endswith(f"but the folder of 2 backups; pass one of them: {listed}")
        assert "manifest.json" in fails(1, "restore", events, tmp_path, "--yes")

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
        assert "no longer kept: a vacuum or a purge removed it" in fails(1, "undo", events, "--yes")

    def test_dry_run_wins_over_yes(self, events: str, tmp_path: Path) -> None:
        """In every command that has both options."""
        stats = result(
            "update", events, "--where", "id < 40", "--set", "price=0", "--backup", tmp_path / "b", "-y"
        )
        source = tmp_path / "new.csv"
        source.write_text("id,day,price,name\n1,1,9.5,new\n")
        before = oracle.file_state(events), os.listdir(tmp_path), result("history", events)
        for command, *options in (
            ("vacuum", events, "--older-than", "0"),
            ("undo", events),
            ("restore", events, "--to", 2),
            ("restore", events, stats["backup_path"]),
            ("delete", events, "--where", "id < 40"),
            ("update", events, "--where", "id < 40", "--set", "price=0"),
            ("deduplicate", events, "--keys", "day"),
            ("merge", source, events, "--keys", "id", "--strategy", "full_merge", "--schema", "cast"),
            ("apply-changes", source, events, "--keys", "id", "--sequence-by", "price", "--delete-when", "id = 1"),
            ("alter", events, "--drop", "name"),
            ("repartition", events, "--no-partitions"),
            ("write", events, source, "--mode", "overwrite"),
        ):
            result(command, *options, "--dry-run", "--yes")
            assert (oracle.file_state(events), os.listdir(tmp_path), result("history", events)) == before, command

    def test_purge(self, events: str) -> None:
        result("update", events, "--where", "id = 7", "--set", "price=0", "--yes")
        purged = result("delete", events, "--where", "id = 7", "--purge", "--yes")["purged_files"]
        assert {each["location"] for each in purged} == {"dataset", "history"}
        shown = "\n".join(lines("delete", events, "--where", "id = 8", "--purge", "--yes"))
        assert " that held, or may have held, these rows purged" in shown

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
