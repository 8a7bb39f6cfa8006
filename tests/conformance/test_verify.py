"""Compaction with `verify`: damage in row groups that are copied is an error, and nothing is changed."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Place
from helpers.damage import MIN_VALUE, in_page, with_statistics
from helpers.exotic import exotic
from parketto import (
    DuckDBParquetHandler,
    ParquetCompactor,
    UnreadableFile,
    compact_parquet_dataset_pyarrow,
)
from parketto.engines.base import Engine
from parketto.parquet import damage
from parketto.tasks import copy as copying

COUNT = 40_000  # enough rows that `rewrite="auto"` copies row groups
TICKS = pa.table(
    {
        "id": pa.array(range(COUNT), pa.int64()),
        "quote": [{"price": number * 1.37, "side": "ask"} for number in range(COUNT)],
    }
)


def written(table: pa.Table = TICKS, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def put(place: Place, *files: bytes) -> Place:
    place.fs.makedirs(place.root, exist_ok=True)
    for number, data in enumerate(files):
        place.fs.pipe_file(f"{place.root}/f{number}.parquet", data)
    return place


@pytest.mark.parametrize("column", ["id", "quote.price"])
def test_two_flipped_bytes_are_not_copied(place: Place, engine: Engine, column: str) -> None:
    sound = written(write_page_checksum=True)
    put(place, sound, in_page(sound, column), sound)
    state = place.state()
    dataset = place.dataset(engine=engine)
    with pytest.raises(UnreadableFile, match=rf"f1\.parquet.*row group 0, column '{column}'.*checksum") as caught:
        dataset.compact(verify=True)
    assert (caught.value.path, caught.value.column) == (f"{place.root}/f1.parquet", column)
    assert place.state() == state
    assert place.left_behind() == []
    dataset.compact()  # without `verify` the damage is copied
    assert [found["column"] for found in dataset.check(deep=True)["damaged"]] == [column]


@pytest.mark.parametrize("options", [{"compression": "snappy"}, {"compression": "gzip"}])
def test_damaged_pages_without_a_checksum_are_not_copied(place: Place, options: dict[str, Any]) -> None:
    sound = written(use_dictionary=False, data_page_size=2**22, **options)
    put(place, sound, in_page(sound, "id", flip=b"\xff" * 32))
    with pytest.raises(UnreadableFile, match=r"f1\.parquet.*column 'id'"):
        place.dataset().compact(verify=True)


def test_wrong_statistics_are_not_copied(place: Place) -> None:
    put(place, written(), with_statistics(written(), {MIN_VALUE: (9).to_bytes(8, "little")}))
    with pytest.raises(UnreadableFile, match=r"f1\.parquet.*column 'id'.*bounds"):
        place.dataset().compact(verify=True)


@pytest.mark.parametrize("arguments", [{"rewrite": "encode"}, {"target_rows_per_file": COUNT // 2}])
def test_damage_in_encoded_row_groups_names_the_column_as_well(place: Place, arguments: dict[str, Any]) -> None:
    sound = written(write_page_checksum=True)
    put(place, sound, in_page(sound, "quote.price"))
    with pytest.raises(UnreadableFile, match=r"f1\.parquet.*column 'quote\.price'.*checksum"):
        place.dataset().compact(verify=True, **arguments)


@pytest.mark.parametrize("rewrite", ["auto", "copy", "encode"])
def test_sound_files_are_compacted(place: Place, engine: Engine, rewrite: Any) -> None:
    place.write_files({f"f{number}.parquet": exotic(number) for number in range(4)})
    before = place.rows()
    stats = place.dataset(engine=engine).compact(rewrite=rewrite, verify=True)
    assert (stats["before_file_count"], stats["after_file_count"]) == (4, 1)
    assert place.rows() == before
    assert place.dataset().check(deep=True)["healthy"]


def test_verify_decodes_only_copied_row_groups(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[str, tuple[int, ...]]] = []

    def noted(file: Any, worker: Any, row_groups: Any = None) -> None:
        decoded.append((file.path[-10:], tuple(row_groups)))
        damage.refuse_damage(file, worker, row_groups)

    monkeypatch.setattr(copying, "refuse_damage", noted)
    put(place, written(row_group_size=COUNT), written(TICKS.slice(0, 10)), written(TICKS.slice(0, 20)))
    dataset = place.dataset()
    dataset.compact()
    assert decoded == []
    place.fs.rm(place.root, recursive=True)
    put(place, written(row_group_size=COUNT), written(TICKS.slice(0, 10)), written(TICKS.slice(0, 20)))
    dataset.compact(verify=True)
    assert decoded == [("f0.parquet", (0,))], "the others are encoded, and therefore decoded anyway"


def test_every_compaction_interface_accepts_verify(local: Place) -> None:
    sound = written(write_page_checksum=True)
    put(local, sound, in_page(sound, "id"))
    with pytest.raises(UnreadableFile, match="column 'id'"):
        ParquetCompactor(local.root, engine="pyarrow").compact(verify=True)
    with pytest.raises(UnreadableFile, match="column 'id'"):
        compact_parquet_dataset_pyarrow(local.root, verify=True)
    with pytest.raises(UnreadableFile, match="column 'id'"), DuckDBParquetHandler() as handler:
        handler.compact_parquet_dataset(local.root, verify=True)
