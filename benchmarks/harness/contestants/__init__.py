"""Who takes part: names, what each can do, and in which environment its process runs.

A contestant is a module with `prepare(request)`, which is not timed (imports, sessions, converting to a table
format), `OPERATIONS`, the timed work by name, each called with the request and what `prepare` returned (what it
returns, if anything, replaces what was measured), and
optionally `result_files(request, prepared)`: the files that count afterwards, if not all below the folder, and
`check(request, prepared)`, which raises if something is wrong that files do not show.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OWN = "own"
"""The environment of this project."""
PEERS = "peers"
"""The environment of the peers: `.venv-bench`."""
PEERS_OLD = "peers-old"
"""Another one, for an old version of a peer that could do what the present one cannot."""

EVERYTHING = frozenset({"compact", "cluster", "upsert", "delete", "update", "repartition"})
ENGINES = ("spark", "duckdb", "pyarrow")
REWRITES = ("auto", "copy", "encode")
_VARIANTS = {
    "alone": ("delete-day", "delete-many-days"),  # on the partition as a dataset of its own
    "indexed": ("delete-narrow", "small-delete"),  # after another operation, with what that leaves beside the data
}
_MORE = {"spark": {"append"}, "duckdb": set(), "pyarrow": {"plan", "import"}}


@dataclass(frozen=True)
class Contestant:
    """One that takes part.

    Attributes:
        module: Its module in this package.
        operations: What it can do.
        against: The Parketto that it is compared with.
        environment: Where its libraries are installed.
        options: Put into its requests.
        jobs: The only jobs in which it takes part; empty: all that it can do.
        on_request: Whether it takes part only if an argument names it.
    """

    name: str
    module: str
    operations: frozenset[str]
    against: str
    environment: str = OWN
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    on_request: bool = False

    @property
    def is_parketto(self) -> bool:
        """Whether it is one of ours."""
        return self.module == "parketto"


def contestants() -> dict[str, Contestant]:
    """All that can take part with the Parketto that is installed."""
    found = [
        Contestant(
            f"parketto/{engine}",
            "parketto",
            EVERYTHING | _MORE[engine],
            f"parketto/{engine}",
            options={"engine": engine},
        )
        for engine in ENGINES
    ]
    if has_argument("compact", "rewrite"):
        found += [
            Contestant(
                f"parketto/{engine} {rewrite}",
                "parketto",
                frozenset({"compact"}),
                f"parketto/{engine}",
                options={"engine": engine, "rewrite": rewrite},
                on_request=True,
            )
            for engine in ENGINES
            for rewrite in REWRITES
        ]
    found += [
        Contestant(
            f"parketto/{engine} {name}",
            "parketto",
            frozenset({"delete"}),
            f"parketto/{engine}",
            options={"engine": engine, name: True},
            jobs=jobs,
        )
        for engine in ("duckdb", "pyarrow")
        for name, jobs in _VARIANTS.items()
    ]
    found += [
        Contestant("spark", "spark", EVERYTHING | {"append"}, "parketto/spark"),
        Contestant("duckdb", "duckdb", EVERYTHING, "parketto/duckdb"),
        Contestant("polars", "polars", EVERYTHING, "parketto/duckdb"),
        Contestant("pyarrow", "pyarrow", EVERYTHING, "parketto/pyarrow"),
        Contestant("pyarrow in memory", "pyarrow_memory", frozenset({"compact"}), "parketto/pyarrow"),
        Contestant("delta", "delta", EVERYTHING - {"repartition"}, "parketto/duckdb", PEERS),
        Contestant("numpy and pyarrow", "imports", frozenset({"import"}), "parketto/pyarrow"),
        Contestant("fsspeckit", "fsspeckit", frozenset({"compact", "upsert"}), "parketto/pyarrow", PEERS),
    ]
    return {contestant.name: contestant for contestant in found}


def has_argument(method: str, argument: str) -> bool:
    """Whether a method of `Dataset` takes an argument; some are younger than this harness."""
    try:
        from parketto import Dataset
    except ImportError:  # in an environment of peers
        return False
    return argument in inspect.signature(getattr(Dataset, method)).parameters
