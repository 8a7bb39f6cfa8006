"""Operations preserve the schema exactly: types, order, nullability and metadata."""

from __future__ import annotations

import datetime as dt
import io
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers import oracle
from helpers.exotic import exotic, row_by_row
from parketto.engines.base import Engine
from parketto.errors import IncompatibleTypes
from parketto.planning.copy_policy import REWRITES
from parketto.tasks.conform import ConformFile


@pytest.mark.parametrize("operation", ["compact", "optimize", "optimize by two", "split"])
def test_exotic_schemas_survive(place: Place, engine: Engine, operation: str) -> None:
    place.write_files({f"f{n}.parquet": exotic(n) for n in range(4)})
    before = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    dataset = place.dataset(engine=engine)
    if operation == "compact":
        dataset.compact()
    elif operation == "split":
        dataset.compact(target_rows_per_file=1)
    else:
        dataset.optimize(["required"] if operation == "optimize" else ["a.b", "required"])
    after = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    assert all(table.schema.equals(before[0].schema, check_metadata=True) for table in after)
    expected, found = row_by_row(before), row_by_row(after)
    assert expected.keys() == found.keys()
    assert all(found[key].equals(row, check_metadata=True) for key, row in expected.items())
    if operation == "optimize":
        assert list(found) == sorted(found)
    kept = [pq.read_metadata(io.BytesIO(place.fs.cat_file(p))) for p in oracle.data_files(place.root, place.fs)]
    assert all(footer.metadata[b"owner"] == b"somebody" for footer in kept)


def footer_of(place: Place) -> pq.FileMetaData:
    (path,) = oracle.data_files(place.root, place.fs)
    return pq.read_metadata(io.BytesIO(place.fs.cat_file(path)))


def test_parquet_schema_is_preserved_exactly(place: Place, engine: Engine) -> None:
    """Not only the Arrow schema: field ids, repetition, logical types, names of list elements."""
    place.write_files({f"f{n}.parquet": exotic(n) for n in range(2)}, use_compliant_nested_type=False)
    path = oracle.data_files(place.root, place.fs)[0]
    before = pq.read_metadata(io.BytesIO(place.fs.cat_file(path)))
    place.dataset(engine=engine).compact()
    after = footer_of(place)
    assert str(after.schema).split("\n")[1:] == str(before.schema).split("\n")[1:]
    assert after.metadata == before.metadata


def test_files_without_an_arrow_schema_do_not_get_one(place: Place, engine: Engine) -> None:
    """As other programs write them."""
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "day": pa.array([1, 2], pa.date32())})
    place.write_files({f"f{n}.parquet": table for n in range(2)}, store_schema=False)
    place.dataset(engine=engine).compact()
    assert b"ARROW:schema" not in (footer_of(place).metadata or {})


def test_int96_timestamps_stay_int96(place: Place, engine: Engine) -> None:
    """Spark's default, and the only type that some readers accept."""
    table = pa.table({"at": pa.array([1_700_000_000_000_000, None], pa.timestamp("us")), "n": [1, 2]})
    place.write_files(
        {f"f{n}.parquet": table for n in range(2)}, use_deprecated_int96_timestamps=True, store_schema=False
    )
    before = place.rows()
    place.dataset(engine=engine).compact()
    assert footer_of(place).schema.column(0).physical_type == "INT96"
    assert place.rows() == before


def test_decimals_stored_as_integers_stay_so(place: Place, engine: Engine) -> None:
    table = pa.table({"price": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2))})
    place.write_files(
        {f"f{n}.parquet": table for n in range(2)}, store_decimal_as_integer=True, store_schema=False
    )
    before = place.rows()
    place.dataset(engine=engine).compact()
    assert footer_of(place).schema.column(0).physical_type == "INT32"
    assert place.rows() == before


def test_files_with_different_metadata_are_merged(place: Place, engine: Engine) -> None:
    """pandas writes the range of its index into every file: such files still belong together."""
    for n in range(3):
        table = pa.table({"id": [n]}).replace_schema_metadata({"pandas": f'{{"stop": {n}}}', f"only-{n}": "x"})
        place.write_files({f"f{n}.parquet": table})
    stats = place.dataset(engine=engine).compact()
    assert stats["after_file_count"] == 1
    found = footer_of(place).metadata
    assert found[b"pandas"] == b'{"stop": 0}', "where files differ, the entry of the first one is kept"
    assert {b"only-0", b"only-1", b"only-2"} <= set(found)


OLD = pa.array([dt.date(1500, 1, 1)] * 3)
LEGACY = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}


@pytest.mark.parametrize("operation", ["compact", "optimize"])
@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"geo": '{"bbox": [0, 0, 1, 1]}'}, {"geo": '{"bbox": [5, 5, 6, 6]}'}, False),
        ({"geo": "{}"}, {}, False),
        ({"org.apache.spark.version": "2.4.8"}, {"org.apache.spark.version": "3.5.0"}, False),
        ({"org.apache.spark.version": "3.0.3"}, {"org.apache.spark.version": "3.5.0"}, False),
        ({"org.apache.spark.version": "3.2.0"}, {"org.apache.spark.version": "3.5.0"}, True),
        (LEGACY, {"org.apache.spark.version": "3.5.0"}, False),
        (LEGACY | {"org.apache.spark.timeZone": "UTC"}, LEGACY | {"org.apache.spark.timeZone": "CET"}, False),
        (LEGACY | {"owner": "me"}, LEGACY, True),
        ({"writer.date.proleptic": "true"}, {"writer.date.proleptic": "false"}, False),
        ({"org.apache.spark.legacyINT96": ""}, {}, False),
    ],
)
def test_files_with_conflicting_reader_metadata_are_not_merged(
    memory: Place, operation: str, one: dict[str, str], other: dict[str, str], together: bool
) -> None:
    """Calendar flags of Spark and GeoParquet metadata apply to a whole file."""
    for at in range(4):
        rows = pa.table({"n": [at, 9, 5], "day": OLD})
        memory.write_files({f"{at}.parquet": rows.replace_schema_metadata([one, other][at % 2] or None)})
    own = {key.encode() for key in (*one, *other)} - {b"owner"}
    before = _read_by(memory, own)
    if operation == "compact":
        memory.dataset().compact()
    else:
        memory.dataset().optimize(["n"])
    assert together or _read_by(memory, own) == before
    assert len(memory.files()) == (1 if together else 2)


@pytest.mark.parametrize("rewrite", REWRITES)
def test_calendars_matter_to_dates_only(memory: Place, rewrite: Any) -> None:
    for at, notes in enumerate((None, LEGACY)):
        memory.write_files({f"{at}.parquet": pa.table({"n": [at]}).replace_schema_metadata(notes)})
    memory.dataset().compact(rewrite=rewrite)
    assert len(memory.files()) == 1
    assert not memory.dataset().files()[0].metadata.keys() & {key.encode() for key in LEGACY}


def _read_by(place: Place, entries: set[bytes]) -> Counter[Any]:
    """The number of rows per combination of these metadata entries."""
    counted: Counter[Any] = Counter()
    for path in oracle.data_files(place.root, place.fs):
        table = oracle.read_file(path, place.fs)
        notes = tuple(sorted((k, v) for k, v in (table.schema.metadata or {}).items() if k in entries))
        counted.update((notes, row["n"]) for row in table.to_pylist())
    return counted


def test_different_dictionaries_per_file(place: Place, engine: Engine) -> None:
    for n in range(4):
        words = pa.array([f"word {n} {i % 3}" for i in range(50)]).dictionary_encode()
        place.write_files({f"f{n}.parquet": pa.table({"word": words, "n": range(50)})})
    before = place.rows()
    dataset = place.dataset(engine=engine)
    dataset.compact()
    assert place.rows() == before
    dataset.optimize(["word", "n"])
    assert place.rows() == before
    assert pa.types.is_dictionary(oracle.schemas(place.root, place.fs)[0].field("word").type)


def test_rewritten_files_carry_statistics_and_page_index(place: Place, engine: Engine) -> None:
    place.write_files({f"f{n}.parquet": pa.table({"id": [n, n + 1]}) for n in range(2)})
    place.dataset(engine=engine).optimize(["id"])
    group = footer_of(place).row_group(0)
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (0, 2)
    assert group.column(0).has_column_index
    assert group.column(0).has_offset_index
    assert [column.column_index for column in group.sorting_columns] == [0]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("name", "kind", "shown"),
    [
        ("hits", "date", r"is int64, and there is no conversion to date32\[day\]"),
        ("hits", pa.list_(pa.int64()), "is int64, .* no conversion to list"),
        ("hits", pa.struct({"a": pa.int64()}), "is int64, .* no conversion to struct"),
        ("day", "boolean", r"is date32\[day\], .* no conversion to bool"),
        ("tags", "int", "is list<.*>, .* no conversion to int32"),
    ],
)
def test_types_without_a_conversion_are_refused_when_planning(
    local: Place, name: str, kind: Any, shown: str, dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"hits": [1], "day": [dt.date(2026, 11, 2)], "tags": [["x"]]}
    local.write_files({"one.parquet": pa.table(rows)})
    monkeypatch.setattr(ConformFile, "run", lambda *_: pytest.fail("planning refuses it"))
    with pytest.raises(
        IncompatibleTypes, match=f"column '{name}' of '.*one.parquet' {shown}.*Nothing was changed"
    ):
        local.dataset(engine="pyarrow").alter(cast={name: kind}, dry_run=dry_run)
