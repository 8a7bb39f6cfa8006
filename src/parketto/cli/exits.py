"""Exit codes, and how errors are shown: one sentence, and a traceback only on request."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from parketto.errors import (
    AuthenticationFailed,
    CommitConflict,
    CommitStateUnknown,
    EngineUnavailable,
    LockTimeout,
    ParkettoError,
)


class Exit(IntEnum):
    """The exit codes of all commands."""

    #: Done, or nothing to do.
    DONE = 0
    #: It failed, and nothing was changed.
    FAILED = 1
    #: The command line is wrong, or a question could not be asked.
    USAGE = 2
    #: Another writer was in the way; its changes are kept. Run the command again.
    CONFLICT = 3
    #: The commit is in the log, but only partly applied: `parketto recover` finishes it.
    NEEDS_RECOVERY = 4
    #: `health --fail-on` found one of its problems.
    UNHEALTHY = 5
    #: Ctrl-C.
    INTERRUPTED = 130


class UsageProblem(ParkettoError):
    """The command line is wrong in a way that only the command can tell. Nothing was changed."""


# The first that fits counts. All other errors leave the dataset as it was.
_CODES: Sequence[tuple[type[BaseException], Exit]] = (
    (UsageProblem, Exit.USAGE),
    (CommitConflict, Exit.CONFLICT),
    (LockTimeout, Exit.CONFLICT),
    (CommitStateUnknown, Exit.NEEDS_RECOVERY),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)
# What to do on the command line, unless the message names an option already.
_HINTS: Sequence[tuple[type[BaseException], str]] = (
    (AuthenticationFailed, "On the command line: --storage-option key=… --storage-option secret=…"),
    (EngineUnavailable, "Another engine: --engine duckdb or --engine pyarrow"),
    (CommitStateUnknown, "Run: parketto recover PATH"),
)
_NAME = r"(?<![\w'\".=-])"  # the start of an argument's name, but not of a quoted column
# How the command line writes arguments and methods of the library.
_SPELLINGS: Sequence[tuple[str, str]] = (
    (r", or use isolation='snapshot'", ""),
    (r"Dataset\.unify_schema\(cast=\{'(.+?)': \.\.\.\}\)", r"parketto unify-schema PATH --cast \1=TYPE"),
    (r"\brestore\(to=(\d+)\)", r"restore --to \1"),
    (r"\bexpect= and ", "--expect and "),
    (
        r"\bon_violation='drop' or 'quarantine'",
        "--on-violation drop, or --on-violation quarantine --quarantine PATH",
    ),
    (r"\bon_violation='(\w+)'", r"--on-violation \1"),
    (r"\bformat=,", "--format,"),
    (r"\b(schema|mode|strategy|engine)='(\w+)'", r"--\1 \2"),
    (r"\bworkspace='([^']*)'", r"--workspace \1"),
    (r"\bpurge=True", "--purge"),
    (rf"{_NAME}key_columns\b", "--keys"),
    (rf"{_NAME}dedup_order_by\b", "--order-by"),
    (rf"{_NAME}(partition|replace|sequence)_(by|where)\b", r"--\1-\2"),
    (rf"{_NAME}(update|insert|delete|except)_(when|columns)\b", r"--\1-\2"),
    (rf"{_NAME}target_(mb|rows)_per_file\b", r"--target-\1"),
)


def exit_code(error: BaseException) -> Exit:
    """The exit code of an error.

    >>> exit_code(CommitConflict("'a.parquet' has changed")), exit_code(OSError("disk full"))
    (<Exit.CONFLICT: 3>, <Exit.FAILED: 1>)
    """
    if not isinstance(error, CommitStateUnknown) and isinstance(error.__cause__, KeyboardInterrupt):
        return Exit.INTERRUPTED  # Ctrl-C during a commit, which was undone
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)


def is_explained(error: BaseException) -> bool:
    """Whether the message of an error is meant for users. All others are bugs, of Parketto or of a library."""
    return isinstance(error, ParkettoError | OSError | ValueError | TypeError | MemoryError | ImportError)


def sentence(error: BaseException) -> str:
    """An error as one line, with what to do about it.

    >>> sentence(CommitStateUnknown("the commit is only partly applied"))
    'the commit is only partly applied. Run: parketto recover PATH'
    >>> sentence(KeyError("x"))
    "unexpected KeyError: 'x'. Run the command with --debug for the traceback"
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, ParkettoError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if not is_explained(error):
        text = f"unexpected {type(error).__name__}: {text}"
        return f"{text.rstrip('.')}. Run the command with --debug for the traceback"
    for written, option in _SPELLINGS:
        text = re.sub(written, option, text)
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
    if hint is None or any(option in text for option in re.findall(r"--[a-z-]+", hint)):
        return text
    return f"{text.rstrip('.')}. {hint}"


def error_document(error: BaseException) -> dict[str, Any]:
    """An error as a JSON document, for `--json`."""
    code = exit_code(error)
    return {"error": {"type": type(error).__name__, "message": sentence(error), "exit_code": int(code)}}


def close_broken_output() -> None:
    """Forget output that the reader of a pipe no longer wants, so that Python does not complain at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
