"""Fixtures and the closing summary."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem

from helpers import oracle
from parketto import Dataset
from parketto.engines.base import Engine

# Tests that name no engine do not depend on it: they use the one without a start-up time.
os.environ.setdefault("PARKETTO_ENGINE", "pyarrow")
# Short-lived JVMs: optimising compilation would take half of their time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Spark's workers import test modules to unpickle objects of tests.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
ENGINES = ("pyarrow", "duckdb", "spark")
MERGE_ENGINES = ("pyarrow", "duckdb", "spark", "spark-shuffle")
_MEMORY = "/dev/shm"
_numbers = itertools.count()


@dataclass
class Place:
    """A location for a dataset: a root on a filesystem."""

    root: str
    fs: AbstractFileSystem
    options: dict[str, Any] = field(default_factory=dict)

    def dataset(self, **options: Any) -> Dataset:
        # Tests that do not set retries expect a single attempt.
        return Dataset(self.root, filesystem=self.fs, **{"retries": 0, **self.options, **options})

    def write_files(self, tables: dict[str, Any], **options: Any) -> None:
        oracle.write_files(self.root, tables, self.fs, **options)

    def rows(self) -> Any:
        return oracle.rows(self.root, self.fs)

    def files(self) -> list[str]:
        return [path[len(self.root) + 1 :] for path in oracle.data_files(self.root, self.fs)]

    def state(self) -> dict[str, str]:
        return oracle.file_state(self.root, self.fs)

    def left_behind(self) -> list[str]:
        """Paths in the parent folder other than the dataset, workspaces, log records and kept files."""
        parent = self.root.rpartition("/")[0]
        found = [path.rstrip("/") for path in self.fs.ls(parent, detail=False)] if self.fs.isdir(parent) else []
        workspaces = [path for path in found if path.endswith(".parketto")]
        inside = [path for workspace in workspaces for path in self.fs.find(workspace) if not is_log(path)]
        return sorted({*found, *inside} - {self.root, *workspaces})


def is_log(path: str) -> bool:
    """Whether a path is part of the history: a log record, the lock next to the log, a kept file, or an index."""
    kept = r"kept/[0-9]+-[0-9]+-[^/]+/([0-9]+|manifest\.json)"
    index = r"index/[0-9a-f]{32}\.footers"
    return bool(
        re.search(rf"\.parketto/(lock|log/(checkpoint-)?[0-9]{{20}}(\.done|\.undo)?\.json|{kept}|{index})$", path)
    )


def beside(folder: str | os.PathLike[str]) -> list[str]:
    """The names in a folder, without workspaces that contain only a log and kept files."""
    return [name for name in sorted(os.listdir(folder)) if not _is_only_log(os.path.join(folder, name))]


def _is_only_log(path: str) -> bool:
    inside = [os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names]
    return path.endswith(".parketto") and all(map(is_log, inside))


@pytest.fixture
def local(tmp_path: Any) -> Place:
    return Place(str(tmp_path / "data" / "events"), fsspec.filesystem("file"))


@pytest.fixture
def memory() -> Iterator[Place]:
    fs = fsspec.filesystem("memory")
    parent = f"/test-{next(_numbers)}"
    yield Place(f"{parent}/events", fs)
    if fs.exists(parent):
        fs.rm(parent, recursive=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An S3 server: the one that PARKETTO_S3_ENDPOINT names, or moto's in another process."""
    pytest.importorskip("s3fs")
    from helpers import s3

    if s3.ENDPOINT not in os.environ:
        pytest.importorskip("moto")
    with s3.started_server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def s3(s3_server: Any) -> Any:
    """A location for a dataset in S3."""
    from helpers.s3 import S3Place

    return S3Place.fresh(s3_server)


#: For tests of how files are published and retired: a swap of directories, single renames, copies.
WAYS_TO_PUBLISH = ("local, swapped", "local, renamed", "memory")


def place_of(request: pytest.FixtureRequest) -> Place:
    """The location for a fixture whose parameter is one of these ways."""
    kind, _, way = request.param.partition(", ")
    chosen: Place = request.getfixturevalue(kind)
    if way == "renamed":
        chosen.options = {"publish": "rename"}
    return chosen


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


def pytest_configure() -> None:
    """Keep temporary files in memory where there is room: on disks, crash tests mostly wait for fsync."""
    if os.path.isdir(_MEMORY) and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 8 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engines", default=",".join(MERGE_ENGINES), help="the engines that the fixture `engine` covers"
    )
    parser.addoption(
        "--share",
        type=int,
        default=12,
        help="one in SHARE runs, at least one: of each test's cases on Spark, and of the steps of crash sweeps",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, choices in (("engine", ENGINES), ("merge_engine", MERGE_ENGINES)):
        if name in metafunc.fixturenames:
            wanted = metafunc.config.getoption("--engines").split(",")
            metafunc.parametrize(name, [choice for choice in choices if choice in wanted], indirect=True)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Spark's tasks run in other processes: they cannot read the memory filesystem of this one.
    apart = [item for item in items if _memory_on_spark(item)]
    config.hook.pytest_deselected(items=apart)
    items[:] = [item for item in items if item not in set(apart)]
    for item in items:
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.s3)
        if _uses_spark(item):
            item.add_marker(pytest.mark.spark)
        # One process uses the shared Spark, one starts its own sessions, one uses the S3 server.
        for name in ("own_spark", "spark", "s3"):
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.xdist_group(name))
                break
    for item in _beyond_share(items, config.getoption("--share")):
        item.add_marker(pytest.mark.sweep)


def _uses_spark(item: pytest.Item) -> bool:
    """Whether a test gets the shared Spark as a fixture or a parameter, or is a docstring's example on Spark."""
    if isinstance(item, pytest.DoctestItem):
        return "spark" in str(item.path)
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    return "spark" in getattr(item, "fixturenames", ()) or any(
        str(value).startswith("spark") for value in chosen.values()
    )


def _beyond_share(items: list[pytest.Item], share: int) -> Iterator[pytest.Item]:
    """Slow cases that others cover as well: on Spark, stalls on S3, and where files are renamed one by one."""
    cases: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        for way in _parameters(item):
            if way.startswith("spark"):
                # Every engine runs the same tasks: some cases of each class, or module, are enough.
                cases[test.rpartition("::")[0], way].append(item)
            elif way == "local, renamed":
                cases[test, way].append(item)
        if "test_s3_stalls" in test:
            cases[test, "stalls"].append(item)
        if "test_handlers" in test and _uses_spark(item):
            cases[test.rpartition("::")[0], "handler"].append(item)
    for found in cases.values():
        # The choice is deterministic, and does not depend on the order of tests.
        found.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        yield from found[-(-len(found) // share) :]


def _memory_on_spark(item: pytest.Item) -> bool:
    engine, merge_engine, place = _parameters(item)
    in_memory = place == "memory" or "memory" in getattr(item, "fixturenames", ())
    return in_memory and any(name.startswith("spark") for name in (engine, merge_engine))


def _parameters(item: pytest.Item) -> tuple[str, str, str]:
    """The engine, the engine for merges, and the place of a test."""
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    engine, merge_engine, place = (str(chosen.get(name, "")) for name in ("engine", "merge_engine", "place"))
    return engine, merge_engine, place


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine | str:
    """Every engine: a test that takes this runs once on each."""
    return _engine(request.param)


@pytest.fixture
def merge_engine(request: pytest.FixtureRequest) -> Engine | str:
    """Every engine; Spark both with broadcast and with shuffle."""
    return _engine(request.param)


def _engine(name: str) -> Engine | str:
    if name == "spark-shuffle":
        from parketto.engines.spark.engine import SparkEngine

        return SparkEngine(broadcast_mb=1e-6, shuffle_mb=1e-6)
    return name


@pytest.fixture(scope="session")
def spark() -> Any:
    """The session that all tests of this process share."""
    from parketto.engines.spark.session import get_session

    return get_session()[0]


@pytest.fixture
def share(request: pytest.FixtureRequest) -> int:
    """One in so many points of a sweep is tested."""
    return int(request.config.getoption("--share"))


@pytest.fixture
def count_crash_points(record_property: Any) -> Any:
    """Records a count in the test report, which also works with several test processes."""
    return lambda points: record_property("crash points", points)


@pytest.fixture
def count_histories(record_property: Any) -> Any:
    """The same for random concurrent histories."""
    return lambda histories: record_property("histories", histories)


@pytest.fixture
def count_states(record_property: Any) -> Any:
    """The same for states of the model that were searched."""
    return lambda states: record_property("states", states)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for title, counted in (
        ("crash sweep", "crash points"),
        ("concurrent histories", "histories"),
        ("model of the commit protocol", "states"),
    ):
        _summarize(terminalreporter, title, counted)


def _summarize(terminalreporter: Any, title: str, counted: str) -> None:
    found = {
        report.nodeid: sum(count for name, count in report.user_properties if name == counted)
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
    }
    counts = {name: count for name, count in sorted(found.items()) if count}
    if counts:
        terminalreporter.section(title)
        for name, count in counts.items():
            terminalreporter.write_line(f"{count:9,d} {counted}  {name}")
        terminalreporter.write_line(f"{sum(counts.values()):9,d} {counted} in all")
