"""Memory is bounded by a setting, not by the data: measured in a process of its own."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import memory

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux to measure")

MEASURE = """
import json, sys
import pyarrow.parquet
from parketto import Dataset, sql
import duckdb, polars, parketto.engines.pyarrow.engine
def peak():  # not ru_maxrss: there a child begins with what its parent has used
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
root, operation, memory_mb, engine = sys.argv[1:]
dataset = Dataset(root, memory_mb=int(memory_mb), engine=engine)
dataset.files()
before = peak()
if operation == "merge":
    dataset.merge(f"{root}-source", "n")
elif operation in ("auto", "copy", "encode"):
    dataset.compact(target_mb_per_file=1024, rewrite=operation)
elif operation == "delete":
    dataset.delete("n % 2 = 0")
elif operation == "update":
    dataset.update("n % 2 = 0", {"value": sql("value")})
elif operation == "repartition":
    dataset.repartition("p")
elif operation == "deduplicate":
    dataset.deduplicate("n")
else:
    dataset.optimize(["n"] if operation == "optimize" else ["n", "m"])
print(json.dumps({"before": before, "peak": peak(), "files": len(dataset.files())}))
"""


def measure(root: str, operation: str, memory_mb: int, engine: str = "pyarrow") -> dict[str, int]:
    command = [sys.executable, "-c", MEASURE, root, operation, str(memory_mb), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("operation", ["auto", "encode", pytest.param("optimize", marks=pytest.mark.sweep)])
def test_memory_is_bounded_for_highly_compressed_data(local: Place, operation: str) -> None:
    """Two files of half a million equal strings: tiny on disk, 1 GB once decoded."""
    os.makedirs(local.root)
    letters = pa.array(["x" * 1000]).take(pa.array(np.zeros(50_000, dtype=np.int32)))
    table = pa.table({"text": pa.chunked_array([letters] * 10), "n": np.zeros(500_000, dtype=np.int64)})
    for number in range(2):
        pq.write_table(table, f"{local.root}/{number}.parquet", row_group_size=500_000)
    del table, letters
    on_disk = sum(entry.stat().st_size for entry in os.scandir(local.root))
    assert on_disk < 2**20
    found = measure(local.root, operation, memory_mb=64)
    assert found["files"] == 1
    assert found["peak"] - found["before"] < 256, found
    assert pq.read_metadata(f"{local.root}/{local.files()[0]}").num_rows == 1_000_000


@pytest.mark.parametrize(
    "operation",
    ["delete", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("repartition", "encode"))],
)
@pytest.mark.parametrize(("shape", "limit"), [("100 columns", 480), ("large strings", 240)])
def test_memory_is_bounded_if_polars_decodes_and_encodes(
    local: Place, shape: str, limit: int, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups that Polars decodes as a whole, and some that are too large for it.

    With Arrow, the same work on 100 columns takes as much: it holds a page of each column.
    """
    monkeypatch.setenv("PARKETTO_CODEC", "polars")
    os.makedirs(local.root)
    rng = np.random.default_rng(9)
    rows = 50_000 if shape == "100 columns" else 20_000
    columns = {"n": np.arange(rows), "p": np.arange(rows) % 4}
    if shape == "100 columns":
        columns |= {f"c{at}": rng.integers(0, 2**40, rows) for at in range(98)}
    else:
        texts = pa.array([chr(97 + at % 26) * 2000 + str(at) for at in range(rows)])
        columns |= {"text": texts.take(pa.array(rng.permutation(rows)))}
    for number in range(6):
        size = rows if number % 3 == 0 else rows // 25
        pq.write_table(pa.table(columns), f"{local.root}/{number}.parquet", row_group_size=size)
    found = measure(local.root, operation, memory_mb=96)
    assert found["peak"] - found["before"] < limit, found
    tables = [pq.read_table(f"{local.root}/{path}", columns=["n"], partitioning=None) for path in local.files()]
    assert sum(table.num_rows for table in tables) == 6 * rows // (2 if operation == "delete" else 1)


def evenly_spread(root: str, megabytes: int, letters: int) -> None:
    """Files of 16 MB each, once decoded."""
    os.makedirs(root)
    rng = np.random.default_rng(8)
    rows = 2**24 // (letters + 16)
    texts = pa.array([chr(97 + number % 26) * letters for number in range(100)])
    for number in range(megabytes // 16):
        table = pa.table(
            {
                "n": rng.integers(0, 2**40, rows),
                "m": rng.integers(0, 2**40, rows),
                "text": texts.take(pa.array(rng.integers(0, len(texts), rows))),
            }
        )
        pq.write_table(table, f"{root}/{number}.parquet")


def laid_out(root: str) -> bool:
    """Whether all row groups but a few have narrow bounds in both columns, so the rows are clustered."""
    spans = []
    for entry in os.scandir(root):
        footer = pq.read_metadata(entry.path)
        for number in range(footer.num_row_groups):
            stats = [footer.row_group(number).column(at).statistics for at in range(2)]
            spans.append([(each.max - each.min) / 2**40 for each in stats])
    return len(spans) > 16 and float(np.mean(spans)) < 0.6


@pytest.mark.parametrize(
    ("name", "letters", "limit"),
    [("pyarrow", 200, 224), pytest.param("pyarrow", 2**20, 384, marks=pytest.mark.sweep), ("duckdb", 200, 400)],
    ids=["pyarrow", "rows of a megabyte", "duckdb"],
)
def test_clustering_of_ten_times_the_memory(local: Place, name: str, letters: int, limit: int) -> None:
    evenly_spread(local.root, 320, letters)
    found = measure(local.root, "cluster", memory_mb=32, engine=name)
    assert found["peak"] - found["before"] < limit, found
    assert laid_out(local.root)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "limit"), [("pyarrow", 320), ("duckdb", 512)])
def test_clustering_of_two_gigabytes(local: Place, name: str, limit: int) -> None:
    evenly_spread(local.root, 2048, 300)
    found = measure(local.root, "cluster", memory_mb=128, engine=name)
    assert found["peak"] - found["before"] < limit, found
    assert laid_out(local.root)


def test_memory_does_not_grow_with_the_number_of_files(local: Place) -> None:
    rng = np.random.default_rng(3)
    peaks = []
    for files in (100, 600):  # 15 and 90 MB
        root = f"{local.root}-{files}"
        os.makedirs(root)
        for number in range(files):
            pq.write_table(pa.table({"n": rng.integers(0, 2**60, 20_000)}), f"{root}/{number}.parquet")
        found = measure(root, "encode", memory_mb=32)
        peaks.append(found["peak"] - found["before"])
    assert peaks[1] < peaks[0] + 48, peaks


@pytest.mark.parametrize("operation", ["deduplicate", "merge"])
def test_memory_is_bounded_for_many_narrow_keys(local: Place, operation: str) -> None:
    """What is noted about each row takes several times as much memory as a key that is a number."""
    os.makedirs(local.root)
    keys = np.arange(12_000_000) * 7919 % 12_000_017  # each row group has small and large ones
    pq.write_table(pa.table({"n": keys}), f"{local.root}/0.parquet", use_dictionary=False)
    pq.write_table(pa.table({"n": keys[:2]}), f"{local.root}-source")
    found = measure(local.root, operation, memory_mb=512)
    assert found["peak"] - found["before"] < 512 + ON_TOP_MB, found


def test_duckdb_spills(local: Place) -> None:
    """Five times as much data as memory: a merge of a fifth of the rows, then a sort of all of them."""
    os.makedirs(local.root)
    rng = np.random.default_rng(4)
    texts = pa.array([f"{number:06d}" * 55 for number in range(500)])
    rows = 100_000
    keys = rng.permutation(2_400_000)

    def write(path: str, numbers: np.ndarray, mark: int) -> int:
        some = texts.take(pa.array(rng.integers(0, len(texts), len(numbers))))
        table = pa.table({"n": numbers, "text": some, "mark": np.full(len(numbers), mark)})
        pq.write_table(table, path)
        return int(table.nbytes)

    decoded = sum(write(f"{local.root}/{at}.parquet", keys[at * rows : (at + 1) * rows], 0) for at in range(20))
    assert decoded > 5 * 128 * 2**20
    os.makedirs(f"{local.root}-source")
    write(f"{local.root}-source/a.parquet", keys[1_800_000:2_200_000], 1)
    for operation in ("merge", "optimize"):
        found = measure(local.root, operation, memory_mb=128, engine="duckdb")
        assert found["peak"] - found["before"] < 448, found
    assert found["files"] == 1
    result = pq.read_table(local.root, columns=["n", "mark"]).to_pydict()
    assert result["n"] == sorted(keys[:2_200_000].tolist())
    assert sum(result["mark"]) == 400_000


@pytest.mark.parametrize("name", ["pyarrow", pytest.param("duckdb", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    "operation",
    ["encode", "delete", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("update", "repartition"))],
)
def test_values_as_large_as_the_memory(local: Place, operation: str, name: str) -> None:
    """The bound is the setting, and a few times the largest row group: here 64 MB, of two values.

    A repartition also holds values of both partitions.
    """
    os.makedirs(local.root)
    rng = np.random.default_rng(6)
    for number in range(6):
        rows = {
            "n": [2 * number, 2 * number + 1],
            "p": [number % 2] * 2,
            "value": [rng.bytes(2**25) for _ in "ab"],
        }
        pq.write_table(pa.table(rows), f"{local.root}/{number}.parquet", compression="none")
    found = measure(local.root, operation, memory_mb=64, engine=name)
    copies = 12 if operation == "repartition" else 8
    assert found["peak"] - found["before"] < 64 + copies * 64, found
    left = sorted(pq.read_table(local.root, columns=["n"], partitioning=None)["n"].to_pylist())
    assert left == [number for number in range(12) if operation != "delete" or number % 2]


#: What an operation may add to a process beside `memory_mb`: copies that libraries make, pages on their way to the
#: disk, plans. The documentation of `memory_mb` states it.
ON_TOP_MB = 256
#: Of a row group that is larger than the memory: read, decoded, edited, encoded, compressed. Local tasks of Spark
#: also use cores that have none.
COPIES = {"pyarrow": 8, "duckdb": 8, "spark": 10}
SHAPES = {
    "64 MB values": (memory.large_values, 128),
    "1 GB in three small files": (memory.highly_compressed, 0),
    "100 columns": (memory.hundred_columns, 0),
}
#: DuckDB gets half of it.
GIVEN_MB = {"pyarrow": 64, "duckdb": 512, "spark": 256}
USUAL = {("pyarrow", "100 columns", "compact"), ("duckdb", "100 columns", "update")}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Makes the data of a shape once."""

    @functools.cache
    def made(shape: str) -> str:
        root = str(tmp_path_factory.mktemp("shape") / "data")
        SHAPES[shape][0](root)
        return root

    return made


def marks(engine: str, shape: str, operation: str) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.own_spark] if engine == "spark" else []
    return found if (engine, shape, operation) in USUAL else [*found, pytest.mark.sweep]


@pytest.mark.parametrize(
    ("name", "shape", "operation"),
    [pytest.param(*case, marks=marks(*case)) for case in itertools.product(GIVEN_MB, SHAPES, memory.OPERATIONS)],
)
def test_memory_mb_holds(
    shaped: Callable[[str], str], tmp_path: Path, name: str, shape: str, operation: str
) -> None:
    """Of every process that decodes rows: this one, and on Spark each of its Python workers."""
    source, root = shaped(shape), str(tmp_path / "data")
    for ending in ("", "-few", "-source", "-few-source"):
        shutil.copytree(f"{source}{ending}", f"{root}{ending}", copy_function=os.link)
    found = memory.measure(root, operation, GIVEN_MB[name], name)
    before, after = ({path.stat().st_ino for path in Path(each).rglob("*.parquet")} for each in (source, root))
    assert (before == after) == (operation == "write"), "it must have done something"
    limit = GIVEN_MB[name] + ON_TOP_MB + COPIES[name] * SHAPES[shape][1]
    assert found["driver"] <= limit, found
    if name == "spark":
        assert 0 < found["worker"] <= limit, found
