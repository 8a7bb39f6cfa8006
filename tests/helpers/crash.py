"""Stores that die: at a chosen mutating call, before or after it takes effect, and for good."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from parketto import Dataset
from parketto.errors import CommitStateUnknown
from parketto.storage.store import MUTATIONS, Store

_READS = (
    "list_files",
    "list_files_after",
    "list_dirs",
    "stat",
    "stat_many",
    "is_dir",
    "read",
    "read_range",
    "open_input",
    "sync",
    "tree",
    "identity",
)


class Crash(BaseException):
    """The process is dead. Not an Exception: no handler may do anything about it."""


#: Errors of an operation whose process is dead: it cannot undo its changes.
DEATHS = (Crash, CommitStateUnknown)


Point = TypeVar("Point")


def sampled(points: Sequence[Point], share: int) -> list[Point]:
    """One in `share` of the points, always the same ones, in order; the first and the last are among them."""
    chosen = random.Random(7).sample(range(len(points)), len(points) // share)
    return [points[at] for at in sorted({0, *chosen, len(points) - 1})]


def mortal(
    dataset: Dataset, at: int | Callable[[str, Any], bool] | None = None, when: str = "before"
) -> Callable[[], int]:
    """Make a dataset's store die at its n-th mutating call; returns a function that counts the calls so far.

    Instead of a number, `at` may be a function that recognises the call by its name and its first argument.
    `when` is "before" or "after" the call takes effect, or "half" (for removing many files: some are gone).
    Once dead, every further call fails as well, so that no clean-up code can run.
    """
    store = dataset._store
    base = type(store)
    state = {"calls": 0, "dead": False}

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(base, name)

        def call(self: Store, *args: Any, **kwargs: Any) -> Any:
            if state["dead"]:
                raise Crash(name)
            if name not in MUTATIONS:
                return original(self, *args, **kwargs)
            state["calls"] += 1
            mine = at(name, *args[:1]) if callable(at) else state["calls"] == at
            if mine and when == "half" and name in ("remove_tree", "remove_many"):
                files = args[0] if name == "remove_many" else (e.path for e in base.list_files(self, args[0]))
                for path in sorted(files)[::2]:
                    base.remove(self, path)
            if mine and when != "after":
                state["dead"] = True
                raise Crash(f"before {name}{args}")
            result = original(self, *args, **kwargs)
            if mine:
                state["dead"] = True
                if name.startswith("open_"):
                    result.close()  # as the kernel would
                raise Crash(f"after {name}{args}")
            return result

        return call

    methods = {name: guarded(name) for name in (*MUTATIONS, *_READS)}
    store.__class__ = type(f"Mortal{base.__name__}", (base,), methods)
    return lambda: state["calls"]
