"""Random datasets, partitions and thresholds: rows and exact schemas survive, and operations are idempotent."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place
from helpers import oracle
from parketto import Dataset
from parketto.storage.hive import encode_segment

_numbers = itertools.count()
FS = fsspec.filesystem("memory")

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=8)),
    "large_string": (pa.large_string(), st.text(max_size=8)),
    "binary": (pa.binary(), st.binary(max_size=8)),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "decimal": (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ü"])),
    "list": (pa.list_(pa.field("element", pa.int32())), st.lists(st.integers(0, 9), max_size=3)),
    "struct": (pa.struct([("x", pa.int32())]), st.fixed_dictionaries({"x": st.integers(0, 9)})),
}
UNORDERED = {"list", "struct"}


@st.composite
def schemas(draw: st.DrawFn) -> tuple[pa.Schema, list[st.SearchStrategy[Any]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    fields, strategies = [], []
    for number, kind in enumerate(kinds):
        nullable = draw(st.booleans())
        fields.append(pa.field(f"c{number}_{kind}", TYPES[kind][0], nullable=nullable))
        strategies.append(st.one_of(st.none(), TYPES[kind][1]) if nullable else TYPES[kind][1])
    return pa.schema(fields), strategies


@st.composite
def datasets(draw: st.DrawFn) -> dict[str, pa.Table]:
    """Some files, of one or two schemas, in some partitions with any kind of value."""
    files: dict[str, pa.Table] = {}
    kinds = draw(st.lists(schemas(), min_size=1, max_size=2))
    metadata = draw(st.dictionaries(st.sampled_from(["k", "owner"]), st.text(max_size=4), max_size=2))
    partitions = draw(st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1, max_size=3, unique=True))
    for number in range(draw(st.integers(1, 8))):
        schema, strategies = draw(st.sampled_from(kinds))
        rows = draw(st.lists(st.tuples(*strategies), max_size=12))
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        directory = encode_segment("part", draw(st.sampled_from(partitions)))
        table = pa.table(columns, schema=schema)
        files[f"{directory}/{number}.parquet"] = table.replace_schema_metadata(metadata or None)
    return files


def schema_of_rows(root: str) -> Counter[str]:
    """The number of rows by directory and schema."""
    counted: Counter[str] = Counter()
    for path in oracle.data_files(root, FS):
        table = oracle.read_file(path, FS)
        fields = table.schema.to_string(show_schema_metadata=False)
        counted[f"{path.rpartition('/')[0]} {fields} {sorted((table.schema.metadata or {}).items())}"] += (
            table.num_rows
        )
    return +counted


CASES = st.tuples(
    datasets(),
    st.sampled_from(["compact", "optimize"]),
    st.one_of(st.none(), st.floats(0.0001, 0.01)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([None, "zstd", "none"]),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(CASES)
def test_rows_and_schemas_survive(case: Any) -> None:
    check(*case)


@pytest.mark.sweep
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(CASES)
def test_rows_and_schemas_survive_in_many_examples(case: Any) -> None:
    check(*case)


def check(
    files: dict[str, pa.Table],
    operation: str,
    megabytes: float | None,
    max_rows: int | None,
    compression: str | None,
) -> None:
    root = f"/property-{next(_numbers)}/events"
    oracle.write_files(root, files, FS)
    try:
        before, schema_before = oracle.rows(root, FS), schema_of_rows(root)
        dataset = Dataset(root, filesystem=FS)
        common = set.intersection(*(set(table.column_names) for table in files.values()))
        ordered = [name for name in sorted(common) if name.split("_", 1)[1] not in UNORDERED]
        if operation == "optimize" and ordered:
            dry = dataset.optimize(
                ordered,
                target_mb_per_file=megabytes,
                target_rows_per_file=max_rows,
                partition_filter=None,
                compression=compression,
                schema="exact",
                dry_run=True,
            )
            done = dataset.optimize(
                ordered,
                target_mb_per_file=megabytes,
                target_rows_per_file=max_rows,
                partition_filter=None,
                compression=compression,
                schema="exact",
            )
            again = dataset.optimize(
                ordered,
                target_mb_per_file=megabytes,
                target_rows_per_file=max_rows,
                partition_filter=None,
                compression=compression,
                schema="exact",
            )
        else:
            dry = dataset.compact(
                megabytes, max_rows, partition_filter=None, compression=compression, schema="exact", dry_run=True
            )
            done = dataset.compact(
                megabytes, max_rows, partition_filter=None, compression=compression, schema="exact"
            )
            again = dataset.compact(
                megabytes, max_rows, partition_filter=None, compression=compression, schema="exact"
            )
        assert oracle.rows(root, FS) == before
        assert schema_of_rows(root) == schema_before
        assert dry["before_file_count"] == done["before_file_count"] == len(files)
        assert done["after_file_count"] == len(oracle.data_files(root, FS))
        assert again["compacted_file_count"] == 0, "a second run does nothing"
        if max_rows is not None:
            assert max(oracle.read_file(p, FS).num_rows for p in oracle.data_files(root, FS)) <= max_rows
        assert Place(root, FS).left_behind() == []
    finally:
        FS.rm(root.rpartition("/")[0], recursive=True)
