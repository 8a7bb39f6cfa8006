"""What all commands have in common: their options, how they open datasets, ask, and end."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from parketto.cli.exits import Exit, UsageProblem, close_broken_output, exit_code
from parketto.cli.options import EngineName, storage_options
from parketto.cli.output import ConsoleOutput, JsonOutput, Output, Result
from parketto.errors import ParkettoError

if TYPE_CHECKING:
    import pyarrow as pa

    from parketto.cli.tables import RowFormat
    from parketto.dataset import Dataset
    from parketto.progress import ProgressOption

_COUNTED = 1000  # commits of a dataset that are searched for those of an interrupted run
_SLOW_START = "parketto.engines.spark.session"  # its INFO lines explain a wait, so a terminal always shows them


class Declined(ParkettoError):
    """The answer to a question was no."""


@dataclass
class CommandContext:
    """The common options of one command line, and what they mean."""

    output: Output
    engine: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    workspace: str | None = None
    timezone: str | None = None
    memory_mb: int | None = None
    opened: list[Dataset] = field(default_factory=list)

    def dataset(self, path: str) -> Dataset:
        """Open a dataset."""
        from parketto.dataset import Dataset

        found = Dataset(
            path,
            self.engine,
            storage_options=self.storage_options or None,
            workspace=self.workspace,
            timezone=self.timezone,
            memory_mb=self.memory_mb,
        )
        self.opened.append(found)
        return found

    def known_dataset(self, path: str) -> Dataset:
        """Open a dataset that has a log, or at least exists: a mistyped path has neither."""
        found = self.dataset(path)
        context = found._context
        if not context.workspace.exists():
            context.check_exists()
        return found

    @property
    def progress(self) -> ProgressOption:
        """Whether operations draw a bar: only on a terminal."""
        from parketto.progress import bar_on_terminal

        return bar_on_terminal(None)

    def write_rows(self, rows: pa.RecordBatchReader, form: RowFormat | None, target: str | None) -> None:
        """Write rows to a file or URL, or else to stdout, in a format."""
        from parketto.cli.tables import chosen_format, write_rows

        chosen = chosen_format(form, target, as_json=isinstance(self.output, JsonOutput))
        with rows:
            write_rows(rows, chosen, target, self.storage_options)

    def confirm(self, what: str, *, yes: bool) -> None:
        """Ask whether to go on, unless the command line has answered.

        Args:
            what: What would happen: `delete 3 rows`.
            yes: Whether the answer is given.

        Raises:
            UsageProblem: There is no terminal to ask on.
            Declined: The answer is no.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageProblem(
                f"this would {what}, and there is no terminal to ask on. Nothing was changed; pass --yes to do "
                "it, or --dry-run to see the plan"
            )
        try:
            agreed = typer.confirm(f"This would {what}. Continue?", err=True)
        except typer.Abort:
            print(file=sys.stderr)  # after the ^C in the line of the question
            raise KeyboardInterrupt from None
        if not agreed:
            raise Declined("nothing was changed")


Function = Callable[..., Result | None]


@dataclass(frozen=True)
class Command:
    """A command of `parketto`: a function of a `CommandContext` and of what the command line gives."""

    name: str
    function: Function
    #: The types of its JSON documents, for the published schemas; None if it has no such document.
    shape: Callable[[], Any] | None = None
    #: `spark`: the dataset's default engine. `pyarrow`: only footers, the log or a few rows are read, so Spark is
    #: not started unless it is asked for. `footers`: the same, unless an option asks for more. `sql`: an engine
    #: that has SQL. None: it opens no dataset.
    engine: Literal["spark", "pyarrow", "footers", "sql"] | None = "spark"
    #: Whether it changes datasets.
    changes: bool = True

    def register(self, app: typer.Typer) -> None:
        """Add it to the application, with the common options after its own."""
        own = [each for name, each in inspect.signature(self.function, eval_str=True).parameters.items()][1:]
        common = [each for each in _COMMON if self._has(each.name)]
        if self.engine is not None:
            common.insert(0, _ENGINES[self.engine])

        def run(**given: Any) -> None:
            shared = {each.name: given.pop(each.name) for each in common}
            self._run(shared, given)

        run.__doc__ = self.function.__doc__
        run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        app.command(self.name)(run)

    def _has(self, option: str) -> bool:
        opening = ("storage_option", "workspace", "timezone", "memory_mb")
        return not (option in opening and self.engine is None) and not (option == "as_json" and self.shape is None)

    def _run(self, shared: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        _configure_logging(verbose=shared["verbose"], debug=shared["debug"])
        context = CommandContext(JsonOutput() if shared.get("as_json") else ConsoleOutput())
        started = time.time()
        try:
            context.engine = shared.get("engine") or ("pyarrow" if self.engine == "pyarrow" else None)
            context.storage_options = storage_options(shared.get("storage_option"))
            context.workspace, context.timezone = shared.get("workspace"), shared.get("timezone")
            context.memory_mb = shared.get("memory_mb")
            result = self.function(context, **given)
            if result is not None:
                context.output.show(result)
            sys.stdout.flush()
        except BrokenPipeError:
            close_broken_output()
            raise typer.Exit(Exit.DONE) from None
        except typer.Exit:
            raise
        except BaseException as error:
            if shared["debug"]:
                traceback.print_exc()
            code = exit_code(error)
            if code == Exit.INTERRUPTED:
                context.output.note(self._interrupted(context, started))
            elif isinstance(error, Declined):
                context.output.note(str(error))
            elif isinstance(error, Exception):
                context.output.fail(error)
            else:
                raise
            raise typer.Exit(code) from None
        raise typer.Exit(Exit.DONE if result is None else result.exit_code)

    def _interrupted(self, context: CommandContext, started: float) -> str:
        """What Ctrl-C has left: the datasets as they were, except for commits that were already done."""
        if not self.changes:
            return "interrupted"
        done = []
        for dataset in context.opened:
            with contextlib.suppress(Exception):  # a dataset that cannot be read has no new commits, either
                commits = [each for each in dataset.history(_COUNTED) if _seconds(each["at"]) >= started]
                done += [f"commit {each['number']} ({each['operation']}) of {dataset.path}" for each in commits]
        if not done:
            return f"interrupted: {_as_before(len(context.opened))}"
        if len(done) == 1:
            return f"interrupted, after {done[0]} was done; it stays"
        return f"interrupted, after {len(done):,} commits were done, which stay; the last one is {done[0]}"


def _as_before(datasets: int) -> str:
    return "the dataset is as it was" if datasets < 2 else "all datasets are as they were"


def _seconds(at: str) -> float:
    import datetime as dt

    return dt.datetime.fromisoformat(at).timestamp()


class _StderrHandler(logging.Handler):
    """Writes to what stderr is now: a progress bar redirects it."""

    def emit(self, record: logging.LogRecord) -> None:
        name = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        print(f"{name}{record.getMessage()}", file=sys.stderr)


def _configure_logging(*, verbose: bool, debug: bool) -> None:
    """Show warnings, and what is going on if that is asked for; Python's own warnings as one line."""
    if (
        not debug
    ):  # else libraries print tracebacks of errors that a command reports itself, as Py4J does on Ctrl-C
        logging.getLogger().addHandler(logging.NullHandler())
    logger = logging.getLogger("parketto")
    logger.addHandler(_StderrHandler())
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if sys.stderr.isatty():
        logging.getLogger(_SLOW_START).setLevel(logging.INFO)

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if not issubclass(category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
            logger.warning("%s", message)

    warnings.showwarning = show


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _engine(choices: Any, default: str, variable: str | None = None) -> inspect.Parameter:
    described = f"What does the work.  [default: {default}]"
    return _parameter(
        "engine", Annotated[choices | None, typer.Option("--engine", envvar=variable, help=described)], None
    )


_ENGINES = {
    "spark": _engine(EngineName, "spark", "PARKETTO_ENGINE"),
    "pyarrow": _engine(EngineName, "pyarrow"),
    "sql": _engine(Literal["duckdb", "spark"], "that of PARKETTO_ENGINE if it has SQL, else duckdb if installed"),
    "footers": _engine(EngineName, "pyarrow; with --deep: that of PARKETTO_ENGINE, or spark"),
}
_COMMON = [
    _parameter(
        "storage_option",
        Annotated[
            list[str] | None,
            typer.Option(
                "--storage-option", metavar="KEY=VALUE", help="An option of the URL's filesystem. Repeatable."
            ),
        ],
        None,
    ),
    _parameter(
        "workspace",
        Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the log, if not the default one.")],
        None,
    ),
    _parameter(
        "timezone",
        Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone of times in conditions.")],
        None,
    ),
    _parameter("memory_mb", Annotated[int | None, typer.Option(help="About how much memory to use.")], None),
    _parameter(
        "as_json", Annotated[bool, typer.Option("--json", help="Write the result as a JSON document.")], False
    ),
    _parameter(
        "verbose", Annotated[bool, typer.Option("--verbose", "-v", help="Say what is going on, on stderr.")], False
    ),
    _parameter("debug", Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")], False),
]
