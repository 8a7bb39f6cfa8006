"""Rows of CSV and JSON files get the types of the dataset that they are added to."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers.cli import fails, lines, parketto
from parketto import Dataset
from parketto.errors import InvalidArgument

SCHEMA = pa.schema(
    {
        "id": pa.int32(),
        "code": pa.string(),
        "day": pa.string(),
        "born": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("ms"),
        "price": pa.decimal128(10, 2),
        "share": pa.float64(),
        "known": pa.bool_(),
    }
)
ROW: dict[str, Any] = {
    "id": 1,
    "code": "00123",
    "day": "2026-11-02",
    "born": dt.date(2026, 11, 2),
    "at": dt.datetime(2026, 11, 2, 10, 0, 0, 5, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 11, 2, 10, 0),  # noqa: DTZ001 - a local time
    "price": Decimal("2.50"),
    "share": 2.0,
    "known": True,
}
TEXTS = {
    **{name: str(value) for name, value in ROW.items()},
    "at": "2026-11-02T10:00:00.000005Z",
    "known": "true",
    "id": "1.0",  # as pandas writes numbers of a column with NULLs
}
JSON = {**TEXTS, "id": 1, "price": 2.5, "share": 2, "known": True}


def landed(place: Place, form: str, *rows: dict[str, Any]) -> str:
    path = f"{place.root}-new.{form}"
    heads = list(rows[0])
    cells = [["" if row[name] is None else str(row[name]) for name in heads] for row in rows]
    csv = [",".join(line) for line in [heads, *cells]]
    text = csv if form == "csv" else [json.dumps(row) for row in rows]
    place.fs.pipe_file(path, "\n".join([*text, ""]).encode())
    return path


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_are_read_in_the_types_of_the_dataset(local: Place, engine: Any, form: str) -> None:
    dataset = local.dataset(engine=engine)
    dataset.write(pa.Table.from_pylist([ROW], SCHEMA))
    given = TEXTS if form == "csv" else JSON
    path = landed(local, form, given, {**dict.fromkeys(given), "id": 2})
    assert dataset.write_from(path, dry_run=True)["rows_written"] == 2
    dataset.write_from(path, schema="strict")
    found = local.dataset(engine="pyarrow").read()
    assert found.schema.types == SCHEMA.types
    assert found.to_pylist() == [ROW, ROW, {**dict.fromkeys(ROW), "id": 2}]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_other_columns_are_inferred(local: Place, engine: Any, form: str) -> None:
    dataset = local.dataset(engine=engine)
    dataset.write(pa.table({"id": pa.array([1], pa.int32()), "code": ["a"]}))
    path = landed(local, form, {"id": 3_000_000_000, "code": "2026-11-02", "n": 7})
    dataset.write_from(path, schema="evolve")
    found = local.dataset(engine="pyarrow").read()
    assert found.schema.field("id").type == pa.int64(), "types may become wider"
    assert found.to_pylist()[1] == {"id": 3_000_000_000, "code": "2026-11-02", "n": 7}
    dataset.write_from(path, "overwrite")
    assert local.dataset(engine="pyarrow").schema.names == ["id", "code", "n"] or form == "json"


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("born", "02.11.2026", "date32[day]"),
        ("at", "soon", "timestamp[us, tz=UTC]"),
        ("price", "2.555", "decimal128(10, 2)"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_values_that_do_not_parse(
    local: Place, engine: Any, form: str, column: str, value: str, kind: str
) -> None:
    dataset = local.dataset(engine=engine)
    dataset.write(pa.Table.from_pylist([ROW], SCHEMA))
    before = local.state()
    given = TEXTS if form == "csv" else JSON
    path = landed(local, form, given, {**given, column: value})
    expected = f"column '{column}' of '{path}' has '{value}', which is no {kind}"
    if (form, column, engine) == ("json", "price", "pyarrow"):
        expected = f"cannot read '{path}' as json: "
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        dataset.write_from(path)
    assert local.state() == before


def test_files_that_differ(local: Place, engine: Any) -> None:
    """Only one of the files has texts that look like something else."""
    dataset = local.dataset(engine=engine)
    dataset.write(pa.table({"id": [1], "code": ["a"]}))
    local.fs.makedirs(f"{local.root}-new")
    for number, code in enumerate(["x", "7", "2026-11-02"]):
        local.fs.pipe_file(f"{local.root}-new/{number}.csv", f"id,code\n{number},{code}\n".encode())
    dataset.write_from(f"{local.root}-new/*.csv")
    found = local.dataset(engine="pyarrow").read().column("code").to_pylist()
    assert sorted(found) == ["2026-11-02", "7", "a", "x"]


class TestCommands:
    def test_own_output_reads_back(self, tmp_path: Path) -> None:
        root = str(tmp_path / "events")
        Dataset(root, engine="pyarrow").write(pa.Table.from_pylist([ROW], SCHEMA))
        for form in ("csv", "json"):
            text = parketto("head", root, "--format", form, binary=True).stdout
            for engine in ("pyarrow", "duckdb"):
                parketto("write", root, "-", "--format", form, "--engine", engine, stdin=text)
        assert Dataset(root, engine="pyarrow").read().to_pylist() == [ROW] * 9

    def test_merges_and_keys(self, tmp_path: Path) -> None:
        root, new = str(tmp_path / "events"), tmp_path / "new.csv"
        Dataset(root, engine="pyarrow").write(pa.table({"id": ["001", "002"], "day": ["2026-11-01"] * 2}))
        new.write_text("id,day\n002,2026-11-02\n003,2026-11-03\n")
        lines("merge", str(new), root, "--keys", "id")
        assert Dataset(root, engine="pyarrow").read().sort_by("id").to_pydict() == {
            "id": ["001", "002", "003"],
            "day": ["2026-11-01", "2026-11-02", "2026-11-03"],
        }
        lines("delete", root, "--keys-from", str(new), "--keys", "id", "--yes")
        assert Dataset(root, engine="pyarrow").read().column("id").to_pylist() == ["001"]
        Dataset(root, engine="pyarrow").alter(add={"n": "BIGINT"})
        new.write_text("id,n\n004,many\n")
        assert "column 'n' of " in fails(1, "merge", str(new), root, "--keys", "id", "--partial")
