"""The data of benchmarks: seeded, of several kinds, made once and then only ever linked.

Every kind has an `id`, unique and consecutive, so that work can ask for rows that lie close together or far apart.
Sizes are given in rows of the trades at 1x; a kind with wide rows has fewer of them, so that no kind is much
heavier than the others.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import points

PRODUCTS = 20
BUCKETS = 100
PARTITION_COLUMN = "bucket"
DEVICES = 10_000
DAY_FILES = 100
DAY_FILE_ROWS = 10
LEAST_DAYS = 4
SEED = 7

Maker = Callable[[int, int, np.random.Generator], pa.Table]


@dataclass(frozen=True)
class Kind:
    """A kind of data: its rows, and how they are spread over files.

    Attributes:
        make: The rows from `first` on: `make(first, rows, rng)`.
        files: How many files at 1x; more at larger scales, so that files stay of one size.
        divisor: How many rows of the base size make one row of this kind.
        row_group_rows: The most rows of a row group; None: one row group in each file.
        partition_column: The column whose values are folders and stand in the path only, if any.
        repeated: Whether every folder has copies of the same `DAY_FILES` files: that many files are made quickly,
            and rows still differ by their folder.
        least_rows: How many rows a file has at least: where there is little data, there are fewer files.
    """

    make: Maker
    files: int
    divisor: float = 1
    row_group_rows: int | None = None
    partition_column: str | None = None
    repeated: bool = False
    least_rows: int = 1


def trades(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """Trades as a collector writes them: about 57 bytes each in Parquet."""
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "time": pa.array(1_700_000_000_000_000 + 500 * ids, pa.timestamp("us", "UTC")),
            "order_id": _hexadecimal(rng, rows, 21),
            "product": _names("P{:02d}-USD", PRODUCTS)[rng.integers(0, PRODUCTS, rows)],
            "bucket": rng.integers(0, BUCKETS, rows).astype(np.int32),
            "lot": rng.integers(0, 100, rows).astype(np.int32),
            "price": np.round(rng.normal(100, 5, rows), 4),
            "size": rng.random(rows),
            "side": rng.integers(0, 2, rows).astype(bool),
            "venue": np.array(["north", "south", "east", "west"])[rng.integers(0, 4, rows)],
        }
    )


def skewed(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """Trades of which nine tenths are in one partition."""
    table = trades(first, rows, rng)
    bucket = np.where(rng.random(rows) < 0.9, 0, rng.integers(1, 10, rows)).astype(np.int32)
    return table.set_column(table.schema.get_field_index(PARTITION_COLUMN), PARTITION_COLUMN, pa.array(bucket))


def narrow(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """A few numbers."""
    return pa.table(
        {
            "id": np.arange(first, first + rows),
            "sensor": rng.integers(0, 1000, rows).astype(np.int32),
            "value": rng.normal(20, 3, rows),
            "quality": rng.integers(0, 4, rows).astype(np.int8),
        }
    )


def devices(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """The same of very many devices."""
    return narrow(first, rows, rng).append_column(
        "device", pa.array(rng.integers(0, DEVICES, rows).astype(np.int32))
    )


def wide(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """A hundred columns of mixed kinds, a tenth of the values missing in some."""
    columns: dict[str, object] = {"id": np.arange(first, first + rows)}
    for number in range(99):
        kind = number % 4
        if kind == 0:
            columns[f"f{number:02d}"] = rng.normal(0, 1, rows)
        elif kind == 1:
            columns[f"i{number:02d}"] = rng.integers(0, 10_000, rows)
        elif kind == 2:
            columns[f"s{number:02d}"] = _names("level-{}", 50)[rng.integers(0, 50, rows)]
        else:
            columns[f"n{number:02d}"] = pa.array(rng.random(rows), mask=rng.random(rows) < 0.1)
    return pa.table(columns)


def strings(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """Mostly text: identifiers that never repeat, paths that share prefixes, messages."""
    words = _names("word{:03d}", 500)
    picked = words[rng.integers(0, len(words), (rows, 8))]
    return pa.table(
        {
            "id": np.arange(first, first + rows),
            "request": _hexadecimal(rng, rows, 16),
            "path": pa.array([f"/srv/data/{a}/{b}.html" for a, b in picked[:, :2]]),
            "message": pa.array([" ".join(row) for row in picked[:, 2:]]),
            "host": _names("host-{:03d}.example", 200)[rng.integers(0, 200, rows)],
            "level": np.array(["debug", "info", "warning", "error"])[rng.integers(0, 4, rows)],
        }
    )


def addresses(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """Two columns of text whose beginnings are equal, which is what curves find hard."""
    one, other, *_ = points.strings(rows, rng)
    return pa.table({"id": np.arange(first, first + rows), "a": one, "b": other, "amount": rng.random(rows)})


KINDS: dict[str, Kind] = {
    "narrow": Kind(narrow, 200),
    "wide": Kind(wide, 100, divisor=20),
    "strings": Kind(strings, 200, divisor=5),
    "tiny": Kind(trades, 1000, divisor=20, row_group_rows=100),
    "healthy": Kind(trades, 200),
    "medium": Kind(trades, 100, divisor=10 / 3),
    "small": Kind(trades, 200, divisor=16, least_rows=500),
    "text": Kind(addresses, 64, divisor=10),
    "partitioned": Kind(trades, 400, partition_column=PARTITION_COLUMN),
    "skewed": Kind(skewed, 2000, partition_column=PARTITION_COLUMN),
    "devices": Kind(devices, 40, divisor=10),
    "one": Kind(narrow, 1, divisor=10**12),
    "days": Kind(narrow, 8_000, divisor=125, partition_column="day", repeated=True),
    "many-days": Kind(narrow, 100_000, divisor=10, partition_column="day", repeated=True),
}


def make(kind_name: str, folder: str, base_rows: int, scale: int) -> Made:
    """The data of that kind and size, made unless it is there already."""
    kind = KINDS[kind_name]
    root = os.path.join(folder, f"{kind_name}-{base_rows}x{scale}")
    try:
        with open(f"{root}.json") as about:
            return Made(**json.load(about))
    except FileNotFoundError:
        shutil.rmtree(root, ignore_errors=True)
    rows = round(base_rows * scale / kind.divisor)
    files = min(kind.files * scale, max(scale, rows // kind.least_rows))
    rows = max(rows, LEAST_DAYS * DAY_FILES * DAY_FILE_ROWS if kind.repeated else files)
    made = write(kind, root, rows, files)
    with open(f"{root}.json", "w") as about:  # last: data without it was interrupted
        json.dump(made.__dict__, about)
    return made


@dataclass(frozen=True)
class Made:
    """Data that is there."""

    kind: str
    root: str
    rows: int
    files: int
    bytes: int


def write(kind: Kind, root: str, rows: int, files: int) -> Made:
    """Write the files of a dataset."""
    rng = np.random.default_rng(SEED)
    os.makedirs(root)
    if kind.repeated:
        return _write_days(kind, root, rows)
    edges = np.linspace(0, rows, files + 1).astype(int)
    if kind.partition_column:
        # As many appends as there are files in each folder; every append touches all folders.
        appends = max(1, files // BUCKETS)
        edges = np.linspace(0, rows, appends + 1).astype(int)
    for number, (first, last) in enumerate(itertools.pairwise(edges)):
        table = kind.make(int(first), int(last - first), rng)
        if not kind.partition_column:
            _write_file(kind, table, os.path.join(root, f"part-{number:05d}.parquet"))
            continue
        values = table.column(kind.partition_column).to_numpy()
        rest = table.drop_columns([kind.partition_column])
        for value in np.unique(values):
            place = os.path.join(root, f"{kind.partition_column}={value}")
            os.makedirs(place, exist_ok=True)
            chosen = rest.take(np.flatnonzero(values == value))
            _write_file(kind, chosen, os.path.join(place, f"part-{number:05d}.parquet"))
    return _made(kind, root, rows)


def days(made: Made) -> int:
    """How many folders repeated data have."""
    return made.files // DAY_FILES


def _write_days(kind: Kind, root: str, rows: int) -> Made:
    rng = np.random.default_rng(SEED)
    folders = max(1, rows // (DAY_FILES * DAY_FILE_ROWS))
    for day in range(folders):
        folder = os.path.join(root, f"{kind.partition_column}={day}")
        os.makedirs(folder)
        for number in range(DAY_FILES):
            path = os.path.join(folder, f"part-{number:05d}.parquet")
            if day == 0:
                _write_file(kind, kind.make(number * DAY_FILE_ROWS, DAY_FILE_ROWS, rng), path)
            else:
                shutil.copyfile(
                    os.path.join(root, f"{kind.partition_column}=0", f"part-{number:05d}.parquet"), path
                )
    return _made(kind, root, folders * DAY_FILES * DAY_FILE_ROWS)


def _made(kind: Kind, root: str, rows: int) -> Made:
    sizes = [os.path.getsize(path) for path in parquet_files(root)]
    name = next((name for name, known in KINDS.items() if known is kind), "")
    return Made(name, root, rows, len(sizes), sum(sizes))


def merge_source(ids: np.ndarray, path: str, make: Maker = trades) -> str:
    """New rows for these ids, as a file."""
    rows = make(0, len(ids), np.random.default_rng(11))
    pq.write_table(rows.set_column(0, "id", pa.array(ids)), path)
    return path


def parquet_files(root: str) -> list[str]:
    """All data files below a folder, hidden ones and logs aside."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        found += [
            os.path.join(folder, name)
            for name in sorted(names)
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]
    return found


def link_fresh(source: str, target: str) -> None:
    """The same files again, as hard links: as good as copies for all who replace files, not write into them."""
    for folder, _, names in os.walk(source):
        place = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(place, exist_ok=True)
        for name in names:
            os.link(os.path.join(folder, name), os.path.join(place, name))


def fingerprint(root: str) -> dict[str, tuple[int, int, int]]:
    """What tells whether somebody wrote into a file: its inode, size and time."""
    return {os.path.relpath(path, root): identity(os.stat(path)) for path in parquet_files(root)}


def identity(about: os.stat_result) -> tuple[int, int, int]:
    """Equal for a file and a hard link to it, until somebody writes into it."""
    return about.st_ino, about.st_size, about.st_mtime_ns


def _write_file(kind: Kind, table: pa.Table, path: str) -> None:
    pq.write_table(table, path, row_group_size=kind.row_group_rows or max(1, table.num_rows))


def _names(template: str, count: int) -> np.ndarray:
    return np.array([template.format(number) for number in range(count)])


def _hexadecimal(rng: np.random.Generator, rows: int, length: int) -> pa.Array:
    """Random strings, made quickly."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[rng.integers(0, 16, (rows, length))]
    return pa.array(np.ascontiguousarray(digits).view(f"S{length}").ravel().astype(f"U{length}"))
