"""Pages that Polars would decode wrongly, or abort for, are left to Arrow, which says what is wrong."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parketto import Dataset, UnreadableFile
from parketto.parquet.decoders.sound_pages import MemoryFile, are_sound

ROWS = 100_000
TABLE = pa.table(
    {
        "flag": [None if n % 7 == 0 else n % 3 == 0 for n in range(ROWS)],
        "n": [n * 7919 % 1000 for n in range(ROWS)],
        "word": [f"w{n % 50}" for n in range(ROWS)],
    }
)


def content(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, **{"row_group_size": ROWS // 2, "compression": "snappy", **options})
    return sink.getvalue()


def sound(raw: bytes, names: list[str] | None = None) -> bool:
    return are_sound(MemoryFile(raw), pq.read_metadata(io.BytesIO(raw)), [0, 1], names)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "brotli", "lz4"])
def test_pages_of_writers_are_sound(version: str, codec: str) -> None:
    assert sound(content(compression=codec, data_page_version=version, data_page_size=10_000))
    assert sound(content(compression=codec, use_dictionary=False, write_statistics=["n"]), ["n", "flag"])


def test_checksums_and_gzip_are_left_to_arrow() -> None:
    """Polars verifies neither the checksums of pages nor those of gzip."""
    assert not sound(content(write_page_checksum=True))
    assert not sound(content(compression={"n": "gzip", "word": "snappy", "flag": "snappy"}))
    assert sound(content(compression={"n": "gzip", "word": "snappy", "flag": "snappy"}), ["word", "flag"])


def test_files_on_disk_are_checked_as_those_in_memory(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(raw := content())
    with pa.OSFile(str(tmp_path / "f.parquet")) as source:
        assert are_sound(source, pq.read_metadata(io.BytesIO(raw)), [0, 1])


def test_no_changed_byte_of_a_header_aborts_polars(tmp_path: Path) -> None:
    """Polars gets what passes the check, in one process, which must reach its end."""
    generator = random.Random(5)
    passed = 0
    for version, dictionary in (("1.0", True), ("2.0", True), ("1.0", False), ("2.0", False)):
        raw = content(data_page_version=version, use_dictionary=dictionary)
        metadata = pq.read_metadata(io.BytesIO(raw)).row_group(0)
        columns = [metadata.column(at) for at in range(3)]
        starts = {at for each in columns for at in (each.dictionary_page_offset, each.data_page_offset) if at}
        for start in sorted(starts):
            for at in range(start, start + 40):
                changed = bytearray(raw)
                changed[at] = generator.choice([0, 0x7F, 0xFF, raw[at] ^ 1, raw[at] ^ 0x80])
                if bytes(changed) != raw and sound(bytes(changed)):
                    (tmp_path / f"{passed}.parquet").write_bytes(changed)
                    passed += 1
    assert passed > 20, "bounds may change"
    code = (
        "import sys, pathlib, polars as pl\n"
        "for path in pathlib.Path(sys.argv[1]).glob('*.parquet'):\n"
        "    try: pl.scan_parquet(path, use_statistics=False, parallel='none').collect()\n"
        "    except (pl.exceptions.PolarsError, pl.exceptions.PanicException): pass\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("codec", ["", "polars"])
def test_negative_number_of_values_is_an_error_not_an_abort(tmp_path: Path, codec: str) -> None:
    raw = bytearray(content(data_page_version="2.0"))
    at = pq.read_metadata(io.BytesIO(bytes(raw))).row_group(0).column(0).data_page_offset
    raw[at + 10] = 0xFF
    (tmp_path / "f.parquet").write_bytes(raw)
    code = (
        "import sys\n"
        "from parketto import Dataset, UnreadableFile\n"
        "dataset = Dataset(sys.argv[1], engine='pyarrow')\n"
        "for run in (dataset.read, lambda: dataset.optimize(['n'])):\n"
        "    try: run()\n"
        "    except UnreadableFile as error: assert 'f.parquet' in str(error)\n"
        "    else: raise AssertionError('it was read')\n"
    )
    environment = {**os.environ, "PARKETTO_CODEC": codec}
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_damaged_gzip_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own checksum, on the way through any operation that decodes it."""
    monkeypatch.setenv("PARKETTO_CODEC", "polars")
    table = TABLE.select(["n"]).append_column("x", pa.array(range(ROWS), pa.int64()))
    path = tmp_path / "data" / "f.parquet"
    path.parent.mkdir()
    dataset = Dataset(str(path.parent), engine="pyarrow")
    generator = random.Random(3)
    for _ in range(10):
        pq.write_table(table, path, compression="gzip", use_dictionary=False)
        raw = bytearray(path.read_bytes())
        chunk = pq.read_metadata(path).row_group(0).column(1)
        middle = chunk.data_page_offset + chunk.total_compressed_size // 2
        raw[middle + generator.randrange(1000)] ^= 1 << generator.randrange(8)
        path.write_bytes(raw)
        pq.write_table(table, path.with_name("g.parquet"), compression="gzip")
        for run in (dataset.read, lambda: dataset.compact(compression="zstd"), lambda: dataset.optimize(["n"])):
            with pytest.raises(UnreadableFile, match=r"f\.parquet"):
                run()


def test_seconds_beyond_milliseconds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet has no seconds, and Polars would wrap them."""
    rows = pa.table({"at": pa.array([2**62] * 10, pa.timestamp("s"))})
    for codec in ("arrow", "polars"):
        monkeypatch.setenv("PARKETTO_CODEC", codec)
        with pytest.raises((pa.ArrowInvalid, ValueError)):
            Dataset(str(tmp_path / codec), engine="pyarrow").write(rows)
