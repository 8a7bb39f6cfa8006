"""Partition paths: no value can leave its segment, none is confused with another, filters match whole segments."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parketto import InvalidArgument
from parketto.storage.hive import (
    NULL_PARTITION,
    decode_segment,
    directory_matcher,
    encode_segment,
    is_data_path,
    partition_values,
)

HOSTILE = [
    "x/y",
    "a=b",
    "..",
    ".",
    "%2F",
    "100%",
    "ünïcode 漢字 🦆",
    "a b",
    "c:d",
    "'",
    '"',
    "[x]",
    "\n",
    "\x00",
    "-",
    "#",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_round_trip_inside_one_segment(value: str) -> None:
    segment = encode_segment("key", value)
    assert "/" not in segment
    assert segment.startswith("key=")
    assert decode_segment(segment) == ("key", value)


@given(st.text(min_size=1).filter(lambda text: max(text) < "\ud800" or max(text) > "\udfff"), st.text(min_size=1))
def test_any_column_and_value_round_trip(column: str, value: str) -> None:
    segment = encode_segment(column, value)
    assert "/" not in segment
    assert decode_segment(segment) == (column, value if value != NULL_PARTITION else None)


def test_null_and_empty_use_the_default_partition_of_hive() -> None:
    assert encode_segment("day", None) == f"day={NULL_PARTITION}"
    assert encode_segment("day", "") == f"day={NULL_PARTITION}"
    assert decode_segment(f"day={NULL_PARTITION}") == ("day", None)
    assert decode_segment("day=") == ("day", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (True, "true"),
        (1.5, "1.5"),
        (dt.date(2025, 11, 4), "2025-11-04"),
        (dt.datetime(2025, 11, 4, 1, 2), "2025-11-04 01%3A02%3A00"),  # noqa: DTZ001 - wall-clock times are values too
    ],
)
def test_values_are_written_as_spark_writes_them(value: object, text: str) -> None:
    assert encode_segment("v", value) == f"v={text}"


def test_invalid_partition_values_and_names_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="list"):
        encode_segment("v", [1])
    with pytest.raises(InvalidArgument, match="name"):
        encode_segment("", 1)


def test_only_segments_with_a_column_are_partitions() -> None:
    assert partition_values("raw/year=2025/=x/month=01") == (("year", "2025"), ("month", "01"))


@pytest.mark.parametrize(
    ("path", "is_data"),
    [
        ("a.parquet", True),
        ("day=1/a.snappy.parquet", True),
        ("_year=2024/a.parquet", True),
        ("a.parquet.tmp", False),
        ("a.csv", False),
        ("_metadata.parquet", False),
        (".a.parquet", False),
        ("_temporary/0/a.parquet", False),
        (".hidden/a.parquet", False),
        ("day=1/_delta_log/a.parquet", False),
        ("._year=2024/a.parquet", False),
    ],
)
def test_hidden_and_non_parquet_files_are_not_data(path: str, is_data: bool) -> None:
    assert is_data_path(path) is is_data


@pytest.mark.parametrize(
    ("wanted", "directory", "matches"),
    [
        ("day=1", "day=1", True),
        ("day=1", "day=10", False),
        ("day=10", "day=1", False),
        ("day=1", "year=2025/day=1", True),
        ("year=2025/day=1", "year=2025/month=3/day=1", True),
        ("day=1/year=2025", "year=2025/day=1", False),
        ("/day=1/", "day=1", True),
        ("key=x%2Fy", "key=x%2fy", True),
        ("key=a b", "key=a%20b", True),
        ("raw", "raw/day=1", True),
        ("raw", "rawer/day=1", False),
        (["day=1", "day=2"], "day=2", True),
        (["day=1", "day=2"], "day=3", False),
        ({"product": "BTC-USD", "date": "2025-11-26"}, "product=BTC-USD/date=2025-11-26", True),
        ({"product": "BTC-USD", "date": "2025-11-26"}, "date=2025-11-26/product=BTC-USD", True),
        ({"product": "BTC-USD", "date": "2025-11-26"}, "product=BTC-USD/date=2025-11-27", False),
        ({"date": dt.date(2025, 11, 26)}, "product=BTC/date=2025-11-26", True),
        ({"date": ["2025-11-26", "2025-11-27"]}, "date=2025-11-27", True),
        ({"month": 1}, "month=01", True),
        ({"month": 1}, "month=10", False),
        ({"month": "1"}, "month=01", False),
        ({"key": None}, f"key={NULL_PARTITION}", True),
        ({"key": None}, "key=x", False),
        ({"key": "x/y"}, "key=x%2Fy", True),
        ({"key": ""}, "key=", True),
        ({"flag": True}, "flag=true", True),
        (None, "anything", True),
    ],
)
def test_partition_filters_match_whole_segments(wanted: object, directory: str, matches: bool) -> None:
    assert directory_matcher(wanted)(directory) is matches  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["", "/", [], {}, [""], [3]])
def test_empty_or_invalid_partition_filters_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="partition_filter"):
        directory_matcher(wrong)  # type: ignore[arg-type]
