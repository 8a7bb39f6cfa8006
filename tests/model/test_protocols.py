"""The commit protocol, model-checked: every interleaving of writers, a reader, recovery and crashes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from model import journal, log
from model.explore import Found, Missing, Search, Step
from model.operations import Operation, append, compact, update
from model.storage import Record, World, move_away, publish, retire, rows_of, step, unstage

START = World(frozenset({("f1", frozenset({(1, 0, 1)})), ("f2", frozenset({(2, 1, 0)}))}))
FOREIGN = ((99,),)


def tables(operations: Iterable[Operation]) -> set[str]:
    """What a table can look like after operations, in whatever order."""
    found = set()
    for order in itertools.permutations(operations):
        table = rows_of(START.live)
        for operation in order:
            table = operation.on_rows(table)
        found.add(repr(table))
    return found


def check(operations: Mapping[str, Operation]) -> Callable[[World, dict[str, str], str], str | None]:
    """What the README promises: committed means there, failed means nothing changed, a reader sees a table."""

    def checked(world: World, outcomes: dict[str, str], end: str) -> str | None:
        if world.dataset != 1:
            return None if end == repr(FOREIGN) else "an interrupted commit was applied to another dataset"
        told = {name: outcome for name, outcome in outcomes.items() if name in operations}
        sure = [operations[name] for name, outcome in told.items() if outcome == "committed"]
        perhaps = [operations[name] for name, outcome in told.items() if outcome in ("dead", "unknown")]
        subsets = [
            sure + list(some) for n in range(len(perhaps) + 1) for some in itertools.combinations(perhaps, n)
        ]
        possible = set().union(*(tables(subset) for subset in subsets))
        if end not in possible:
            denied = [name for name, outcome in told.items() if outcome in ("failed", "conflict")]
            wrong = [sure + [operations[name] for name in denied]]
            if denied and any(end in tables(subset) for subset in wrong):
                return "a commit that happened is reported as one that did not"
            return "no serial order gives this table"
        read = [outcome[5:] for outcome in outcomes.values() if outcome.startswith("read ")]
        everything = [
            list(some) for n in range(len(told) + 1) for some in itertools.combinations(operations.values(), n)
        ]
        if any(table not in set().union(*(tables(subset) for subset in everything)) for table in read):
            return "a reader sees half of a commit"
        return None

    return checked


def search(
    protocol: str,
    operations: Mapping[str, Operation],
    *,
    storage: str,
    crashes: int = 0,
    readers: int = 0,
    sweeps: str | None = None,
    moves: bool = False,
) -> Found:
    """Everything that can happen. On an object store any lease may run out while its holder stalls."""
    local = storage == "local disk"
    module = {"journal": journal, "log": log}[protocol]
    programs = {}
    for name, operation in operations.items():
        if protocol == "log":
            programs[name] = lambda name=name, operation=operation: log.writer(name, operation, local=local)
        else:
            programs[name] = lambda name=name, operation=operation: journal.writer(name, operation)
    for number in range(readers):
        programs[f"reader {number}"] = lambda number=number: module.reader(f"reader {number}")
    if sweeps is not None:
        programs["sweeper"] = lambda: log.sweeper("sweeper", sweeps)
    if moves:
        programs["mover"] = mover
    world = replace(START, lapses=0 if local else 2)

    def died(world: World, name: str) -> World:
        freed = None if world.holder == name and local else world.holder
        return replace(world, holder=freed, dead=world.dead | {name})

    found = Search(programs, died=died, ending=module.next_user, check=check(operations), crashes=crashes).run(
        world
    )
    print(f"{protocol} on {storage}: {found.states:,} states, {found.ends:,} ends, {[*found.violations]}")
    return found


def mover() -> Generator[Step, Any, str]:
    yield move_away(after="A")
    return "moved"


A, B = append((7, 5, 5)), compact()
# Each makes the rows like those of the other: one after the other all are alike in the end.
X = update(lambda row: row[1] == 0, lambda row: (row[0], 1, row[2]))
Y = update(lambda row: row[1] == 1, lambda row: (row[0], 0, row[2]))
LOCAL, OBJECTS = "local disk", "object store"


class TestOneJournal:
    """A single journal that everybody overwrites and removes can be fooled, and this is how."""

    def test_a_commit_that_another_process_completes(self) -> None:
        found = search("journal", {"A": A}, storage=OBJECTS, readers=1)
        assert "a commit that happened is reported as one that did not" in found.violations

    def test_a_journal_that_is_not_the_writers_own_any_more(self) -> None:
        found = search("journal", {"A": A, "B": B}, storage=OBJECTS, crashes=1)
        assert "no serial order gives this table" in found.violations

    def test_a_dataset_that_was_moved_away(self) -> None:
        found = search("journal", {"A": A}, storage=LOCAL, crashes=1, moves=True)
        assert "an interrupted commit was applied to another dataset" in found.violations

    def test_write_skew(self) -> None:
        found = search("journal", {"X": X, "Y": Y}, storage=LOCAL)
        assert "no serial order gives this table" in found.violations


@pytest.mark.parametrize("storage", [LOCAL, OBJECTS])
class TestLog:
    """Numbered records cannot."""

    @pytest.mark.parametrize("operations", [{"A": A, "B": B}, {"X": X, "Y": Y}], ids=["append", "updates"])
    def test_two_writers_and_two_crashes(self, storage: str, operations: dict[str, Operation]) -> None:
        assert search("log", operations, storage=storage, crashes=2).violations == {}

    def test_a_reader_beside_writers(self, storage: str) -> None:
        assert search("log", {"A": A, "B": B}, storage=storage, crashes=2, readers=1).violations == {}

    @pytest.mark.parametrize("operation", [A, X], ids=["append", "update"])
    def test_a_dataset_that_was_moved_away(self, storage: str, operation: Operation) -> None:
        assert search("log", {"A": operation}, storage=storage, crashes=1, moves=True).violations == {}

    @pytest.mark.parametrize(
        "operations", [{"A": A}, pytest.param({"A": A, "B": B}, marks=pytest.mark.sweep)], ids=["one", "two"]
    )
    def test_staged_files_of_a_writer_that_stalls_are_swept(
        self, storage: str, operations: dict[str, Operation]
    ) -> None:
        assert search("log", operations, storage=storage, crashes=2, sweeps="A0").violations == {}


WEAKER = {
    "a record may be overwritten": ("create", lambda number, record: overwrite(number, record)),
    "nobody asks whose record it is": ("standing", lambda: step("assume", lambda w: (w, 1))),
    "nobody asks whether files are still staged": ("is_staged", lambda *_: step("assume", lambda w: (w, True))),
    "it is done before all is": ("carry_out", lambda number, record: done_first(number, record)),
    "old files go first": ("carry_out", lambda number, record: retired_first(number, record)),
}


def overwrite(number: int, record: Record) -> Step:
    return step("overwrite", lambda w: (replace(w, log=(*w.log[: number - 1], record)), True))


def done_first(number: int, record: Record) -> log.Steps:
    for name, rows in sorted(record.publish):
        with contextlib.suppress(Missing):
            yield publish(record.owner, name, rows)
    yield log.create_done(number)
    for name in sorted(record.retire):
        yield retire(name)
    yield unstage(record.sweeps or record.owner)


def retired_first(number: int, record: Record) -> log.Steps:
    for name in sorted(record.retire):
        yield retire(name)
    yield from log.carry_out_as_it_is(number, record)


@pytest.mark.parametrize("weakness", WEAKER)
def test_a_weaker_protocol_is_found_out(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing wrong says little unless it finds what is."""
    name, weaker = WEAKER[weakness]
    monkeypatch.setattr(log, "carry_out_as_it_is", log.carry_out, raising=False)
    monkeypatch.setattr(log, name, weaker)
    found = [
        search("log", {"A": A}, storage=OBJECTS, crashes=1, sweeps="A0"),
        search("log", {"A": A, "B": B}, storage=OBJECTS, crashes=1, readers=1),
        search("log", {"A": A}, storage=LOCAL, crashes=1, moves=True),
    ]
    assert any(each.violations for each in found)
