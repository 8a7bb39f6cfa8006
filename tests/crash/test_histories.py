"""Random histories of concurrent processes that are killed and stalled: results must match a serial order.

The log defines the order of commits. Every commit must change the rows of the commit before it exactly as
a model in plain Python does; an undo takes back exactly what its commits have changed. Results that callers
got must agree with the log, and every read must have returned the rows after some commit while it ran.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from history_worker import COLUMNS, SHARED_KEYS, table, values

from conftest import Place
from helpers import oracle

WORKER = str(Path(__file__).with_name("history_worker.py"))
KINDS = ["append", "upsert", "insert", "update", "update", "increment", "move", "delete", "compact", "optimize"]
KINDS += ["undo", "undo"]
LAYOUT_KINDS = [*KINDS, "repartition", "overwrite", "restore"]
_INSIDE = 120  # about the number of changes to the disk per worker: a signal comes before one of them

Rows = Counter[tuple[int, ...]]


class Forker:
    """A process that forks workers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    started = Forker()
    yield started
    started.close()


@dataclass
class Commit:
    """A record of the log, and the rows of its files."""

    number: int
    id: str
    operation: str
    commit_id: str | None
    outcome: str
    statistics: Any
    publish: dict[str, Rows]
    retire: list[str]

    @property
    def published(self) -> Rows:
        return sum(self.publish.values(), Rows())

    @property
    def undone(self) -> list[int]:
        return self.statistics["undone"] if self.operation in ("undo", "restore") else []


@dataclass
class Piece:
    """One operation of a worker, and its result."""

    worker: str
    operation: dict[str, Any]
    numbers: list[int]
    attempts: list[str] = field(default_factory=list)
    outcome: str = "killed"
    result: Any = None
    end_numbers: list[int] | None = None


def rows_of(path: str) -> Rows:
    return Rows(tuple(row[name] for name in COLUMNS) for row in pq.ParquetFile(path).read().to_pylist())


def after(operation: dict[str, Any], rows: Rows) -> Rows:
    """The rows after an operation, by the model."""
    kind = operation["kind"]
    given = [tuple(row) for row in operation.get("rows", ())]
    conditions = [(COLUMNS.index(column), value) for column, value in _conditions(operation)]

    def matches(row: tuple[int, ...]) -> bool:
        return all(row[at] == value for at, value in conditions)

    def changed(row: tuple[int, ...]) -> tuple[int, ...]:
        column, value = operation.get("set", ("n", row[COLUMNS.index("n")] + 1))
        at = COLUMNS.index(column)
        return (*row[:at], value, *row[at + 1 :])

    match kind:
        case "append":
            return rows + Rows(given)
        case "upsert":
            keys = {row[0] for row in given}
            return Rows({row: n for row, n in rows.items() if row[0] not in keys}) + Rows(given)
        case "insert":
            known = {row[0] for row in rows}
            return rows + Rows(row for row in given if row[0] not in known)
        case "update" | "move" | "increment":
            found = Rows()
            for row, n in rows.items():
                found[changed(row) if matches(row) else row] += n
            return found
        case "delete":
            return Rows({row: n for row, n in rows.items() if not matches(row)})
    return rows


def _conditions(operation: dict[str, Any]) -> list[tuple[str, int]]:
    return [tuple(operation[name]) for name in ("where", "and") if name in operation]


class History:
    """What happened to one dataset.

    Args:
        place: Where it is.
        notes: The folder with the workers' notes and copies of all files that they committed.
        first: The rows before the history.
    """

    def __init__(self, place: Place, notes: Path, first: dict[str, Rows]) -> None:
        self._place, self._notes = place, notes
        self.commits = list(self._read_log())
        self.pieces: list[Piece] = []
        self.reads: list[dict[str, Any]] = []
        for path in sorted(notes.glob("*.jsonl")):
            self._read_notes(path)
        self.by_attempt = {attempt: piece for piece in self.pieces for attempt in piece.attempts}
        #: The files, with their rows, after each commit.
        self.states: dict[int, dict[str, Rows]] = {0: first}
        for commit in self.commits:
            files = dict(self.states[commit.number - 1])
            if commit.outcome == "complete":
                assert not files.keys() & commit.publish.keys(), f"{commit} publishes a path that exists"
                files |= commit.publish
                for path in commit.retire:
                    assert path in files, f"{commit.number} retires {path}, which an earlier commit has retired"
                    del files[path]
            self.states[commit.number] = files

    def _read_log(self) -> Iterator[Commit]:
        folder = Path(self._place.root).parent / f".{Path(self._place.root).name}.parketto" / "log"
        numbers = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())
        assert numbers == list(range(1, len(numbers) + 1)), "numbers are missing in the log"
        for number in numbers:
            record = json.loads((folder / f"{number:020d}.json").read_bytes())
            done = json.loads((folder / f"{number:020d}.done.json").read_bytes())
            publish = {
                new["path"]: rows_of(str(self._notes / "kept" / new["staged"])) for new in record["publish"]
            }
            yield Commit(
                number,
                record["id"],
                record["operation"],
                record["commit_id"],
                done["outcome"],
                record["statistics"],
                publish,
                [old["path"] for old in record["retire"]],
            )

    def _read_notes(self, path: Path) -> None:
        for line in path.read_text().splitlines():
            said = json.loads(line)
            match said.pop("kind"):
                case "begin":
                    self.pieces.append(Piece(path.stem, said["operation"], said["numbers"]))
                case "attempt":
                    self.pieces[-1].attempts.append(said["id"])
                case "end":
                    piece = self.pieces[-1]
                    piece.outcome, piece.result, piece.end_numbers = (
                        said["outcome"],
                        said["result"],
                        said["numbers"],
                    )
                case "read":
                    self.reads.append(said)

    def rows(self, number: int) -> Rows:
        return sum(self.states[number].values(), Rows())

    def check(self, isolation: str) -> None:
        last = max(self.states)
        self._check_ids()
        assert oracle_rows(self._place) == self.rows(last), "the files are not those of the last commit"
        for commit in self.commits:
            if commit.outcome == "complete":
                self._check_commit(commit, isolation)
        for piece in self.pieces:
            self._check_result(piece, isolation)
        for read in self.reads:
            self._check_read(read)

    def _check_commit(self, commit: Commit, isolation: str) -> None:
        """The commit changed the rows as the model does."""
        operation = self.by_attempt[commit.id].operation
        before, found = self.rows(commit.number - 1), self.rows(commit.number)
        retired = sum((self.states[commit.number - 1][path] for path in commit.retire), Rows())
        if operation["kind"] in ("undo", "restore"):
            expected = before.copy()
            for number in commit.undone:
                expected.subtract(self.rows(number))
                expected.update(self.rows(number - 1))
            assert found == +expected, f"{commit}: missing {expected - found}, too many {found - expected}"
            assert not -expected, f"{commit} undoes rows that are not there"
        elif operation["kind"] == "overwrite":
            # Files that others added while it ran are kept; all files from before it began are removed.
            begun = self.by_attempt[commit.id].numbers[0]
            since = {path for other in self.commits[begun : commit.number - 1] for path in other.publish}
            left = [path for path in self.states[begun] if path in self.states[commit.number].keys() - since]
            assert not left, f"{commit.number} leaves {left}"
            assert commit.published == Rows(map(tuple, operation["rows"])), commit
        elif isolation == "serializable":
            assert found == after(operation, before), self._difference(commit, before, found)
        if operation["kind"] in ("update", "move", "increment", "delete", "upsert", "compact", "optimize"):
            # At every isolation level: no concurrent change of the same rows is lost.
            expected = after(operation, retired)
            if operation["kind"] == "upsert":  # rows that have the new values already stay where they are
                stay = before - retired
                expected -= Rows(row for row in map(tuple, operation["rows"]) if stay[row])
            assert commit.published == expected, self._difference(commit, retired, commit.published)

    def _check_ids(self) -> None:
        """A commit id is used again only after its commit was undone."""
        in_effect: dict[int, bool] = {}
        turned: dict[int, list[int]] = {}
        users: dict[str, int] = {}

        def turn(number: int) -> None:
            in_effect[number] = not in_effect[number]
            for each in turned[number]:
                turn(each)

        for commit in (commit for commit in self.commits if commit.outcome == "complete"):
            if commit.commit_id is not None:
                earlier = users.get(commit.commit_id)
                assert earlier is None or not in_effect[earlier], f"{commit.commit_id} was committed twice"
                users[commit.commit_id] = commit.number
            turned[commit.number] = []
            for each in sorted(commit.undone, reverse=True):
                if in_effect[each]:
                    turn(each)
                    turned[commit.number].append(each)
                else:
                    assert commit.operation == "restore", f"{commit.number} undoes {each}, which is undone"
            in_effect[commit.number] = True

    def _difference(self, commit: Commit, before: Rows, found: Rows) -> str:
        piece = self.by_attempt[commit.id]
        expected = after(piece.operation, before)
        return (
            f"commit {commit.number}, {piece.operation} by {piece.worker}: "
            f"missing {expected - found}, too many {found - expected}"
        )

    def _check_result(self, piece: Piece, isolation: str) -> None:
        """The result that the caller got agrees with the log."""
        complete = [
            commit for commit in self.commits if commit.id in piece.attempts and commit.outcome == "complete"
        ]
        assert len(complete) <= 1, f"{piece} was committed {len(complete)} times"
        assert piece.outcome != "error", f"{piece.operation}: {piece.result}"
        if piece.outcome in ("conflict", "failed", "refused"):
            assert not complete, f"{piece} is {complete}"
        if complete and piece.end_numbers is not None:
            assert piece.numbers[0] < complete[0].number <= piece.end_numbers[1], f"{piece} is {complete}"
        if piece.outcome != "committed":
            return
        if complete:
            if piece.attempts[-1] != complete[0].id:
                raise AssertionError(f"{piece} was committed, and then tried again")
        elif commit_id := piece.operation.get("commit_id"):
            known = [
                commit for commit in self.commits if commit.commit_id == commit_id and commit.outcome == "complete"
            ]
            results = [
                {**commit.statistics.get("stats", commit.statistics), "repeated_commit": commit.number}
                for commit in known
            ]
            assert piece.result in results, f"the result of {piece} differs from those of {known}"
        elif isolation == "serializable":
            assert piece.end_numbers is not None
            window = range(piece.numbers[0], piece.end_numbers[1] + 1)
            assert any(after(piece.operation, self.rows(n)) == self.rows(n) for n in window), (
                f"{piece} changed nothing"
            )

    def _check_read(self, read: dict[str, Any]) -> None:
        seen = Rows({tuple(row[:-1]): row[-1] for row in read["rows"]})
        (settled, _), (_, last) = read["numbers"]
        window = range(settled, last + 1)
        if read["plain"] and any(self.commits[number - 1].outcome == "undone" for number in window if number):
            return  # a reader without the log sees a rollback file by file
        assert any(self.rows(number) == seen for number in window), (
            f"a {'plain ' if read['plain'] else ''}reader between {settled} and {last} saw no commit's state; "
            f"from the nearest: {min((self._apart(number, seen) for number in window), key=str)}"
        )

    def _apart(self, number: int, seen: Rows) -> tuple[int, Rows, Rows]:
        return number, seen - self.rows(number), self.rows(number) - seen


def oracle_rows(place: Place) -> Rows:
    return sum((rows_of(path) for path in oracle.data_files(place.root)), Rows())


def play(
    place: Place,
    notes: Path,
    forker: Forker,
    seed: int,
    *,
    isolation: str = "serializable",
    spark: bool = False,
) -> Counter[str]:
    """Run a history and check it; returns the number of operations per outcome, and of those that undo others."""
    chance = random.Random(seed)
    (notes / "kept").mkdir(parents=True)
    layouts = chance.random() < 0.5
    publish = "auto" if chance.random() < 0.75 else "rename"
    first = [(each, *values(chance)) for each in range(SHARED_KEYS)]
    place.write_files({f"first-{n}.parquet": table(first[n::4]) for n in range(4)})
    before = {path[len(place.root) + 1 :]: rows_of(path) for path in oracle.data_files(place.root)}
    shared = {
        "root": place.root,
        "notes": str(notes),
        "isolation": isolation,
        "publish": publish,
        "kinds": LAYOUT_KINDS if layouts else KINDS,
        "operations": chance.randint(3, 6),
        "pauses": chance.choice((0.0, 0.05, 0.2)),
    }
    writers, readers = [], []
    if spark:
        other = start_spark(shared, notes, seed)
    for worker in range(chance.randint(2, 4)):
        asked = {
            "kind": "writer",
            "name": f"writer-{worker}",
            "worker": worker,
            "seed": chance.randrange(1 << 30),
            "engine": chance.choice(("pyarrow", "pyarrow", "duckdb")),
            "retries": chance.choice((0, 1, 3, 3)),
            "signals": random_signals(chance),
        }
        writers.append(forker.ask({**shared, **asked}))
    for reader, plain in enumerate((False, True)):
        if not plain or (publish == "auto" and not layouts):
            asked = {"kind": "reader", "name": f"reader-{reader}", "plain": plain, "seed": seed}
            readers.append(forker.ask({**shared, **asked, "engine": "pyarrow"}))
    disturb(writers, chance, seconds=chance.uniform(0.0, 2.0))
    if spark:
        assert other.wait(300) == 0
    (notes / "over").touch()
    ended = forker.ask({"wait": [*writers, *readers]})
    assert set(ended) <= {0, signal.SIGKILL, signal.SIGINT}, ended
    assert set(ended[len(writers) :]) <= {0}, "a reader failed"
    place.dataset().recover()
    assert place.left_behind() == [], "files were left beside the dataset"
    history = History(place, notes, before)
    history.check(isolation)
    outcomes = Counter(piece.outcome for piece in history.pieces)
    return outcomes + Counter(commit.operation for commit in history.commits if commit.undone)


def start_spark(shared: dict[str, Any], notes: Path, seed: int) -> subprocess.Popen[bytes]:
    """A writer on Spark, which is not forked; it begins when its session has started."""
    task = {"kind": "writer", "name": "writer-spark", "worker": 9, "seed": seed, "engine": "spark"}
    task |= shared | {"retries": 3, "signals": {}}
    started = subprocess.Popen([sys.executable, WORKER, json.dumps(task)])
    said = notes / "writer-spark.jsonl"
    while not (said.exists() and "ready" in said.read_text()):
        assert started.poll() is None, "Spark did not start"
        time.sleep(0.02)
    return started


def random_signals(chance: random.Random) -> dict[int, int]:
    """Signals by the number of the change to the disk that they come before."""
    signals: dict[int, int] = {}
    for at in chance.sample(range(1, _INSIDE), chance.choice((0, 1, 1, 2))):
        signals[at] = chance.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP, signal.SIGINT))
        if signals[at] == signal.SIGINT and chance.random() < 0.5:
            signals[at + chance.randint(1, 6)] = signal.SIGKILL  # during the rollback
    return signals


def disturb(workers: list[int], chance: random.Random, seconds: float) -> None:
    """Send signals at random moments, and resume stopped workers, until all have ended."""
    random_until = time.monotonic() + seconds
    stopped: dict[int, float] = {}
    while any(state(pid) not in ("Z", "") for pid in workers):
        time.sleep(0.005)
        if time.monotonic() < random_until and chance.random() < 0.02:
            victim = chance.choice(workers)
            if state(victim) not in ("Z", ""):
                os.kill(victim, chance.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP)))
        for pid in workers:
            if state(pid) == "T":
                stopped.setdefault(pid, time.monotonic() + chance.uniform(0.0, 0.3))
        for pid in [pid for pid, until in stopped.items() if time.monotonic() > until]:
            del stopped[pid]
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    """The state of a process in the kernel: "T" is stopped, "Z" has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def play_many(
    tmp_path: Path, forker: Forker, seeds: range, isolation: str = "serializable", *, spark: bool = False
) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        place = Place(str(tmp_path / f"{seed}" / "data" / "events"), oracle.fsspec.filesystem("file"))
        try:
            found += play(place, tmp_path / f"{seed}" / "notes", forker, seed, isolation=isolation, spark=spark)
        except AssertionError as error:
            error.add_note(f"seed {seed}, isolation {isolation}")
            raise
    return found


@pytest.mark.parametrize(("isolation", "seeds"), [("serializable", range(6)), ("snapshot", range(10, 13))])
def test_random_histories(
    tmp_path: Path, forker: Forker, isolation: str, seeds: range, count_histories: Any
) -> None:
    found = play_many(tmp_path, forker, seeds, isolation)
    assert found["committed"] > 3 * len(seeds), found
    # Whether an undo is refused depends on what others commit first.
    assert found["undo"] + found["refused"] > 0, found
    count_histories(len(seeds))


@pytest.mark.sweep
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("share", range(10))
def test_many_random_histories(
    tmp_path: Path, forker: Forker, isolation: str, share: int, count_histories: Any
) -> None:
    histories = 50 if isolation == "serializable" else 10
    first = 1000 * (share + 1)
    found = play_many(tmp_path, forker, range(first, first + histories), isolation)
    assert min(found[name] for name in ("committed", "killed", "conflict", "refused", "undo", "restore")) > 0, (
        found
    )
    count_histories(histories)


@pytest.mark.spark
@pytest.mark.sweep
def test_random_histories_with_spark(tmp_path: Path, forker: Forker, count_histories: Any) -> None:
    found = play_many(tmp_path, forker, range(50_000, 50_003), spark=True)
    assert found["committed"], found
    count_histories(3)
