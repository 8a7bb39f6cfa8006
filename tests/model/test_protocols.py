"""The commit protocol, model-checked: every interleaving of writers, a reader, recovery and crashes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from model import journal, log, moving
from model.explore import Found, Missing, Program, Search, Step
from model.operations import Operation, append, compact, update
from model.storage import Record, World, move_away, publish, retire, rows_of, step, unstage

#: Receive the number of states of each search.
COUNTERS: list[Callable[[int], None]] = []


@pytest.fixture(autouse=True)
def counted(count_states: Callable[[int], None]) -> None:
    COUNTERS[:] = [count_states]


START = World(frozenset({("f1", frozenset({(1, 0, 1)})), ("f2", frozenset({(2, 1, 0)}))}))
FOREIGN = ((99,),)


def tables(operations: Iterable[Operation]) -> set[str]:
    """All tables that the operations can give, in any order."""
    found = set()
    for order in itertools.permutations(operations):
        table = rows_of(START.live)
        for operation in order:
            table = operation.on_rows(table)
        found.add(repr(table))
    return found


def distinct(operations: Iterable[Operation]) -> list[Operation]:
    """The operations, only one for each commit id."""
    return list({operation.commit_id or id(operation): operation for operation in operations}.values())


def check(operations: Mapping[str, Operation]) -> Callable[[World, dict[str, str], str], str | None]:
    """What the README promises: commits are visible, failures change nothing, a reader sees whole commits."""

    def checked(world: World, outcomes: dict[str, str], end: str) -> str | None:
        if world.dataset != 1:
            return None if end == repr(FOREIGN) else "an interrupted commit was applied to another dataset"
        claimed = {name: outcome for name, outcome in outcomes.items() if name in operations}
        sure = distinct(operations[name] for name, outcome in claimed.items() if outcome == "committed")
        perhaps = distinct(operations[name] for name, outcome in claimed.items() if outcome in ("dead", "unknown"))
        subsets = [
            sure + list(some) for n in range(len(perhaps) + 1) for some in itertools.combinations(perhaps, n)
        ]
        possible = set().union(*(tables(subset) for subset in subsets))
        if end not in possible:
            denied = [name for name, outcome in claimed.items() if outcome in ("failed", "conflict")]
            wrong = [sure + [operations[name] for name in denied]]
            if denied and any(end in tables(subset) for subset in wrong):
                return "a commit that happened is reported as one that did not"
            return "no serial order gives this table"
        if not all(map(functools.partial(keeps_its_files, world), world.log)):
            return "what is kept is not what was retired"
        read = [outcome[5:] for outcome in outcomes.values() if outcome.startswith("read ")]
        shown = distinct([*sure, *perhaps])
        everything = [list(some) for n in range(len(shown) + 1) for some in itertools.combinations(shown, n)]
        if any(table not in set().union(*(tables(subset) for subset in everything)) for table in read):
            return "a reader sees half of a commit"
        return None

    return checked


def keeps_its_files(world: World, commit: tuple[int, Record]) -> bool:
    """Whether all that a commit has retired is kept, with a manifest, or nothing if it was undone."""
    number, record = commit
    if not record.retire or number <= world.checkpoint:  # a record of a folded number is void
        return True
    manifest = dict(world.manifests).get(record.owner)
    kept = {(name, rows) for owner, name, rows in world.parked if owner == record.owner}
    if number in world.undone:
        return manifest is None and not kept
    return manifest is not None and manifest == kept and {name for name, _ in kept} == record.retire


def search(
    protocol: str,
    operations: Mapping[str, Operation],
    *,
    storage: str,
    crashes: int = 0,
    readers: int = 0,
    sweeps: str | None = None,
    moves: bool = False,
    faults: int = 0,
    folds: int = 0,
    busy: str | None = None,
) -> Found:
    """Search all interleavings. On an object store leases may expire while their holder stalls."""
    local = storage != OBJECTS
    module = {"journal": journal, "log": log, "moves": moving}[protocol]
    options = {"local": local} if protocol == "log" else {}
    programs: dict[str, Program] = {}
    for name, operation in operations.items():
        write = log.busy_writer if name == busy else module.writer
        programs[name] = functools.partial(write, name, operation, **options)
    for number in range(faults):
        programs[f"fault {number}"] = moving.fail
    for number in range(folds):
        programs[f"folder {number}"] = log.fold_log
    for number in range(readers):
        programs[f"reader {number}"] = functools.partial(module.reader, f"reader {number}")
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
    for count in COUNTERS:
        count(found.states)
    print(f"{protocol} on {storage}: {found.states:,} states, {found.ends:,} ends, {[*found.violations]}")
    return found


def mover() -> Generator[Step, Any, str]:
    yield move_away(after="A")
    return "moved"


A, B = append((7, 5, 5)), compact()
# Each update changes the rows that the other one produces: in any serial order all rows end up equal.
X = update(lambda row: row[1] == 0, lambda row: (row[0], 1, row[2]))
Y = update(lambda row: row[1] == 1, lambda row: (row[0], 0, row[2]))
LOCAL, OBJECTS = "local disk", "object store"
NAMED = append((7, 5, 5), commit_id="orders:1")


class TestOneJournal:
    """A single journal, which all writers overwrite and remove, has these violations."""

    def test_commit_completed_by_another_process_is_reported_as_failed(self) -> None:
        found = search("journal", {"A": A}, storage=OBJECTS, readers=1)
        assert "a commit that happened is reported as one that did not" in found.violations

    def test_journal_overwritten_by_another_writer_breaks_serial_order(self) -> None:
        found = search("journal", {"A": A, "B": B}, storage=OBJECTS, crashes=1)
        assert "no serial order gives this table" in found.violations

    def test_interrupted_commit_is_applied_to_another_dataset(self) -> None:
        found = search("journal", {"A": A}, storage=LOCAL, crashes=1, moves=True)
        assert "an interrupted commit was applied to another dataset" in found.violations

    def test_write_skew_is_possible(self) -> None:
        found = search("journal", {"X": X, "Y": Y}, storage=LOCAL)
        assert "no serial order gives this table" in found.violations


@pytest.mark.parametrize("storage", [LOCAL, OBJECTS])
class TestLog:
    """A log of numbered records has no violations."""

    @pytest.mark.parametrize("operations", [{"A": A, "B": B}, {"X": X, "Y": Y}], ids=["append", "updates"])
    def test_two_writers_and_two_crashes_are_serializable(
        self, storage: str, operations: dict[str, Operation]
    ) -> None:
        assert search("log", operations, storage=storage, crashes=2).violations == {}

    def test_reader_during_commits_sees_whole_commits(self, storage: str) -> None:
        assert search("log", {"A": A, "B": B}, storage=storage, crashes=2, readers=1).violations == {}

    @pytest.mark.parametrize("operation", [A, X], ids=["append", "update"])
    def test_interrupted_commit_is_not_applied_to_another_dataset(
        self, storage: str, operation: Operation
    ) -> None:
        assert search("log", {"A": operation}, storage=storage, crashes=1, moves=True).violations == {}

    @pytest.mark.parametrize(
        "operations", [{"A": A}, pytest.param({"A": A, "B": B}, marks=pytest.mark.sweep)], ids=["one", "two"]
    )
    def test_staged_files_of_a_writer_that_stalls_are_swept(
        self, storage: str, operations: dict[str, Operation]
    ) -> None:
        assert search("log", operations, storage=storage, crashes=2, sweeps="A0").violations == {}


class TestMoving:
    """On a disk an error after the record undoes the commit, and recovery after a crash continues that."""

    @pytest.mark.parametrize(
        ("operations", "crashes", "faults"),
        [
            ({"A": A, "B": B}, 2, 2),
            ({"X": X, "Y": Y}, 2, 2),
            pytest.param({"A": A, "B": B, "X": X}, 0, 1, marks=pytest.mark.sweep),
        ],
        ids=["append", "updates", "three"],
    )
    def test_errors_and_crashes_are_undone_or_completed(
        self, operations: dict[str, Operation], crashes: int, faults: int
    ) -> None:
        assert search("moves", operations, storage=LOCAL, crashes=crashes, faults=faults).violations == {}

    @pytest.mark.parametrize(
        "operations", [{"B": B}, pytest.param({"A": A, "X": X}, marks=pytest.mark.sweep)], ids=["one", "two"]
    )
    def test_reader_during_errors_and_crashes_sees_whole_commits(self, operations: dict[str, Operation]) -> None:
        assert search("moves", operations, storage=LOCAL, crashes=1, faults=1, readers=1).violations == {}

    def test_interrupted_commit_is_not_applied_to_another_dataset(self) -> None:
        assert search("moves", {"A": X}, storage=LOCAL, crashes=1, faults=1, moves=True).violations == {}


class TestFolding:
    """Old records are removed while a stalled writer is about to use one of their numbers."""

    @pytest.mark.parametrize(
        "options",
        [
            {"crashes": 1},
            pytest.param({"crashes": 2, "readers": 1}, marks=pytest.mark.sweep),
            pytest.param({"folds": 1}, marks=pytest.mark.sweep),
        ],
        ids=["crash", "reader", "twice"],
    )
    @pytest.mark.parametrize("operations", [{"X": X, "Y": Y}, {"X": A, "Y": B}], ids=["updates", "append"])
    def test_record_numbers_are_not_reused(
        self, operations: dict[str, Operation], options: dict[str, int]
    ) -> None:
        assert search("log", operations, storage=OBJECTS, busy="Y", **options).violations == {}


class TestCommitIds:
    """A piece of work that is done twice, or again after a crash, is in the table once."""

    @pytest.mark.parametrize(
        ("protocol", "storage", "options"),
        [
            ("log", OBJECTS, {"crashes": 1}),
            ("moves", LOCAL, {"crashes": 1, "faults": 1}),
            ("log", OBJECTS, {"crashes": 1, "busy": "A"}),
        ],
        ids=["object store", "local disk", "folded"],
    )
    def test_replay_does_not_duplicate_rows(self, protocol: str, storage: str, options: dict[str, Any]) -> None:
        operations = {"A": NAMED, "replay": NAMED}
        assert search(protocol, operations, storage=storage, **options).violations == {}


WEAKER = {
    "a record may be overwritten": ("create", lambda number, record: overwrite(number, record)),
    "nobody asks whose record it is": ("current_dataset", lambda: step("assume", lambda w: (w, 1))),
    "nobody asks whether files are still staged": ("is_staged", lambda *_: step("assume", lambda w: (w, True))),
    "it is done before all is": ("carry_out", lambda number, record: done_first(number, record)),
    "old files go first": ("carry_out", lambda number, record: retired_first(number, record)),
}


def overwrite(number: int, record: Record) -> Step:
    def act(world: World) -> tuple[World, Any]:
        return replace(world, log=(*(each for each in world.log if each[0] < number), (number, record))), True

    return step("overwrite", act)


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


def overwrite_manifest(owner: str, files: Any) -> Step:
    def act(world: World) -> tuple[World, Any]:
        others = {each for each in world.manifests if each[0] != owner}
        return replace(world, manifests=frozenset({*others, (owner, files)})), None

    return step("overwrite the manifest", act)


def unconditional_copy(record: Record) -> log.Steps:
    return (yield log.copy_retired(record)) if record.retire else frozenset()


@pytest.mark.parametrize("weakness", ["a manifest may be overwritten", "files are not copied"])
def test_search_detects_weaker_retention(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakness == "files are not copied":
        monkeypatch.setattr(log, "copy_retired", lambda record: step("skip", lambda w: (w, frozenset())))
    else:
        monkeypatch.setattr(log, "create_manifest", overwrite_manifest)
        monkeypatch.setattr(log, "keep", unconditional_copy)
    found = search("log", {"A": A, "B": B}, storage=OBJECTS, crashes=1)
    assert "what is kept is not what was retired" in found.violations


@pytest.mark.parametrize("step_left_out", ["write_manifest", "remove_manifest"])
def test_search_detects_weaker_retention_of_moved_files(
    step_left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, step_left_out, lambda _: step("skip", lambda w: (w, None)))
    found = search("moves", {"X": X}, storage=LOCAL, crashes=1, faults=1)
    assert "what is kept is not what was retired" in found.violations


@pytest.mark.parametrize("weakness", WEAKER)
def test_search_detects_a_weaker_protocol(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without violations means little unless it detects broken protocols."""
    name, weaker = WEAKER[weakness]
    monkeypatch.setattr(log, "carry_out_as_it_is", log.carry_out, raising=False)
    monkeypatch.setattr(log, name, weaker)
    searches = (  # the smallest first: the one that detects it is the last one that runs
        lambda: search("log", {"A": A}, storage=LOCAL, crashes=1, moves=True),
        lambda: search("log", {"A": A}, storage=OBJECTS, crashes=1, sweeps="A0"),
        lambda: search("log", {"A": A, "B": B}, storage=OBJECTS, crashes=1, readers=1),
    )
    assert any(each().violations for each in searches)


def dirty_reader(me: str) -> Generator[Step, Any, str]:
    """Trusts the record of a commit that may still be undone."""
    return (yield from log.reader(me))


def completed(record: Record) -> Step:
    return step("assume", lambda w: (w, True))


def report_failed(number: int, record: Record) -> moving.Steps:
    yield step("nothing", lambda w: (w, None))
    return "failed"


def settled_first(number: int, record: Record) -> moving.Steps:
    yield moving.decide_undo(number)
    yield moving.settle(number, undone=True)
    yield from moving.roll_back(record)
    return "failed"


WEAKER_MOVES: dict[str, tuple[str, Any]] = {
    "an error is reported, and nothing undone": ("give_up", report_failed),
    "it is settled before all is undone": ("give_up", settled_first),
    "nobody asks whether it can be completed": ("can_complete", completed),
    "a reader does not wait": ("reader", dirty_reader),
}


@pytest.mark.parametrize("weakness", WEAKER_MOVES)
def test_search_detects_a_weaker_undo(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, weaker = WEAKER_MOVES[weakness]
    monkeypatch.setattr(moving, name, weaker)
    if name == "can_complete":  # otherwise the decision to undo hides the error
        monkeypatch.setattr(moving, "decide_undo", lambda number: step("decide", lambda w: (w, None)))
    assert any(
        search("moves", {"X": each}, storage=LOCAL, crashes=1, faults=1, readers=1).violations for each in (B, X)
    )


WEAKER_FOLDS: dict[str, tuple[str, Any]] = {
    "a number that was freed counts": ("is_void", lambda *_: step("assume", lambda w: (w, False))),
    "what is removed is forgotten": ("remembered", lambda _: frozenset()),
    "the last record is removed, too": ("last_to_fold", lambda latest: latest.number),
}


@pytest.mark.parametrize(
    "weakness",
    [
        pytest.param(weakness, marks=pytest.mark.sweep if name == "last_to_fold" else ())
        for weakness, (name, _) in WEAKER_FOLDS.items()
    ],
)
def test_search_detects_weaker_folding(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, weaker = WEAKER_FOLDS[weakness]
    monkeypatch.setattr(log, name, weaker)
    helper = {"sweeps": "nobody"} if name == "last_to_fold" else {}
    found = search("log", {"X": X, "Y": Y}, storage=OBJECTS, busy="Y", **helper)
    assert found.violations


@pytest.mark.parametrize("weakness", ["nobody asks again before the record", "ids are forgotten"])
def test_search_detects_weaker_commit_ids(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakness == "ids are forgotten":
        monkeypatch.setattr(log, "remembered", lambda records: frozenset(each.owner for each in records))
    else:
        monkeypatch.setattr(log, "knows", lambda _: step("assume", lambda w: (w, False)))
    found = search("log", {"A": NAMED, "replay": NAMED}, storage=OBJECTS, busy="A")
    assert "no serial order gives this table" in found.violations
