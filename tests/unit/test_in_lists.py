"""IN with long lists: read in bulk, looked up in one step, pruned by binary search, and the same as without."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from contextlib import ExitStack
from decimal import Decimal
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.files import file_of
from parketto.errors import InvalidArgument
from parketto.expressions import dispatch, literal_lists, membership
from parketto.expressions.conditions import predicate
from parketto.expressions.literal_lists import cut_lists
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock
from parketto.parquet.file_info import FileInfo

UTC = dt.UTC
NAN, INF = float("nan"), float("inf")
NEW_YORK = "America/New_York"


def wall(*parts):
    return dt.datetime(*parts)  # noqa: DTZ001 - what a clock shows


TABLE = pa.table(
    {
        "i": pa.array([1, 2, None, -5, 2**62, 300], pa.int64()),
        "tiny": pa.array([1, None, -128, 127, 0, 7], pa.int8()),
        "u": pa.array([2**64 - 1, 0, None, 7, 2**63, 300], pa.uint64()),
        "f": pa.array([0.5, NAN, None, -0.0, 1e300, INF]),
        "f4": pa.array([0.1, NAN, None, 0.0, 16777216.0, INF], pa.float32()),
        "d": pa.array([Decimal("1.50"), None, Decimal("-5"), Decimal("0"), Decimal("99999.99"), Decimal("7")],
                      pa.decimal128(7, 2)),
        "s": pa.array(["a", "it's", None, "", "1", "2024-01-02"]),
        "large": pa.array(["a", "it's", None, "", "1", "ä"], pa.large_string()),
        "raw": pa.array([b"a", b"", None, b"1", b"it's", b"x"]),
        "day": pa.array([dt.date(2024, 1, 2), None, dt.date(1999, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1),
                         dt.date(2024, 1, 3)]),
        "old_day": pa.array([dt.date(2024, 1, 2), None] * 3, pa.date64()),
        "naive": pa.array([wall(2024, 1, 2), None, wall(2026, 3, 8, 2, 30), wall(2024, 1, 2, 12, 30, 0, 5),
                           wall(3000, 1, 1), wall(2026, 11, 1, 1, 30)], pa.timestamp("us")),
        "ts": pa.array([wall(2024, 1, 2, 5), None, wall(2026, 3, 8, 7, 30), wall(2024, 1, 2), wall(2024, 1, 2, 12),
                        wall(2026, 11, 1, 5, 30)], pa.timestamp("us", "UTC")),
        "sec": pa.array([wall(2024, 1, 2), None, wall(2024, 1, 2, 12, 30), wall(1999, 1, 1), None, None],
                        pa.timestamp("s")),
        "ns": pa.array([wall(2024, 1, 2), None, wall(2024, 1, 2, 5), wall(2024, 1, 2, 12), None, None],
                       pa.timestamp("ns", "UTC")),
        "ok": pa.array([True, None, False, True, True, False]),
    }
)  # fmt: skip
NUMBERS = ["1", "-5", "0", "-0", "2", "7", "300", "007", "0.5", "1.50", "1.5", "1.505", "-5.00", "1e0", "1E300",
           "0.1", "-0.0", "16777217", "99999.99", "100000.00", "1e400", "9223372036854775807",
           "9223372036854775808", "-9223372036854775808", "18446744073709551615", "4611686018427387904",
           "123456789012345678901234567890", "0.000000000000000000001"]  # fmt: skip
STRINGS = ["'a'", "''", "'it''s'", "''''", "'1'", "'ä'", "'-- x'", "'a, ''b'') OR i IN (1'", "'1e3'", "'NaN'",
           "'/* a'", "'\\'", "'true'"]  # fmt: skip
DATES = ["'2024-01-02'", "'1999-01-01'", "'2024-02-29'", "'0001-01-01'", "'3000-01-01'"]
TIMES = [*DATES, "'2024-01-02 12:30:00'", "'2024-01-02T12:30:00.000005'", "'2026-03-08 02:30:00'",
         "'2026-11-01 01:30'"]  # fmt: skip
ODD_TIMES = [*TIMES, "'2024-01-02 00:00:00Z'", "' 2024-01-02 '", "'2024-02-30'"]
ANYTHING = [*NUMBERS, *STRINGS, *ODD_TIMES, "NULL", "TRUE", "i", "1 + 1", "X'61'", "DATE '2024-01-02'", "- 5",
            "+5", ".5", "5.", "1_0"]  # fmt: skip
FITTING = {
    **dict.fromkeys(("i", "tiny", "u", "f", "f4", "d"), (NUMBERS[:8], NUMBERS[:13], NUMBERS, [*NUMBERS, "null"])),
    **dict.fromkeys(("s", "large", "raw"), (STRINGS, [*STRINGS, *TIMES], [*STRINGS, "NULL"])),
    **dict.fromkeys(("day", "old_day"), (DATES, [*DATES, "NULL"], ODD_TIMES)),
    **dict.fromkeys(("naive", "ts", "sec", "ns"), (DATES, TIMES, [*TIMES, "NULL"], ODD_TIMES)),
    "ok": (["'true'"],),
}


@st.composite
def conditions(draw):
    chance = random.Random(draw(st.integers(0, 10**6)))
    column = draw(st.sampled_from(TABLE.schema.names))
    elements = ANYTHING if draw(st.integers(0, 5)) == 0 else draw(st.sampled_from(FITTING[column]))
    chosen = [chance.choice(elements) for _ in range(chance.randint(1, 6))]
    comma = chance.choice(
        [", ", ",", " ,\n", "\t,\r\n", ", /* no */ ", ", -- no\n", ",,"] if chance.random() < 0.3 else [", "]
    )
    operator = chance.choice(["IN", "in", "NOT IN", "In "])
    where = f"{column} {operator}({comma.join(chosen)})"
    before = chance.choice(
        ["", "", "s = 'IN (1, 2' OR ", 'NOT "i" = 3 AND ', "-- IN (1)\n", "/* IN (1) */ ", "(", "`i` > 0 OR "]
    )
    after = chance.choice(
        ["", "", " AND i > 0", " OR s IN ('a', 'b') -- IN (3)", ") IS NOT TRUE", " OR i IN (3, 4)"]
    )
    return f"{before}{where}{after}"


def outcome(where, zone, bulk):
    """The matching rows and the files that are kept, or that it is an error."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(literal_lists, "_MIN_LENGTH", 0 if bulk else 10**9))
        stack.enter_context(mock.patch.object(membership, "_SHORT_LIST", 0 if bulk else 10**9))
        try:
            condition = pickle.loads(pickle.dumps(predicate(where, TABLE.schema, Clock(zone))))
            return condition, condition.matches(TABLE.to_batches()[0]).to_pylist()
        except InvalidArgument as error:
            return error, None


@given(conditions(), st.sampled_from([None, NEW_YORK]))
@settings(max_examples=200, deadline=None)
def test_lists_mean_the_same_in_bulk(where, zone):
    _, one_by_one = outcome(where, zone, bulk=False)
    condition, found = outcome(where, zone, bulk=True)
    assert found == one_by_one, condition
    if found is None:
        return
    files = [file_of(TABLE.slice(at, size)) for size in (1, 2, 3) for at in range(0, 6, size)]
    spans = [found[at : at + size] for size in (1, 2, 3) for at in range(0, 6, size)]
    for keeps, span in zip(may_match(condition, files), spans, strict=True):
        assert keeps or not any(span)


def numbers(count, text="{}"):
    return ", ".join(text.format(number) for number in range(count))


@pytest.mark.parametrize(
    "where",
    [
        f"i IN ({numbers(1000)})",
        f"i not in\n(\n{numbers(1000)}\n)",
        "s IN ({})".format(numbers(1000, "'{}'")),
        "s NOT IN ({})".format(numbers(1000, "'it''s {}'")),
        "d IN ({}, 1.50, NULL)".format(numbers(1000, "-{}.5")),
        "i IN ({})".format(numbers(1000, "00{}")),
        f"s <> 'it''s IN (' AND (i IN ({numbers(1000)}) OR f IN ({numbers(1000)})) -- IN (1",
    ],
)
def test_the_parser_does_not_see_long_lists(where):
    text, lists = cut_lists(where)
    assert lists
    assert len(text) < 100
    with mock.patch.object(literal_lists, "_MIN_LENGTH", 10**9):
        parsed = predicate(where, TABLE.schema).matches(TABLE.to_batches()[0])
    assert predicate(where, TABLE.schema).matches(TABLE.to_batches()[0]).equals(parsed)
    assert parsed.true_count


@pytest.mark.parametrize(
    "where",
    [
        "s = 'i IN ({})'",
        '"i IN ({})" = 1',
        "i = 1 -- IN ({})",
        "i = 1 /* IN ({}) */",
        "/* ' */ i IN ({}) -- '",
        "`a\"b` = 'x' OR i IN ({})",
        "i IN ({}, i)",
        "i IN ({}",
        "i IN ({},)",
        "i IN (1, {} 3)",
        "i IN (--{}\n)",
        "i IN ({}) {{",
        "plugin IN_ ({})",
    ],
)
def test_what_is_not_certain_is_left_to_the_parser(where):
    where = where.format(numbers(1000))
    assert cut_lists(where) == (where, {})


def test_errors_are_about_the_text_as_given():
    with pytest.raises(InvalidArgument, match=r"not valid SQL near .*\(line 1, column 4897\)"):
        predicate(f"i IN ({numbers(1000)}) i", TABLE.schema)
    with pytest.raises(InvalidArgument, match=r"cannot compare string and int64; use CAST, in 's IN \(0, 1, 2"):
        predicate(f"s IN ({numbers(1000)})", TABLE.schema)
    with pytest.raises(InvalidArgument, match="'x0' is not a value of type date32"):
        predicate("day IN ({})".format(numbers(1000, "'x{}'")), TABLE.schema)
    with pytest.raises(InvalidArgument, match="not available"):
        predicate(f"position(s IN ({numbers(1000)})) = 1", TABLE.schema)


@pytest.mark.parametrize("zone", [None, NEW_YORK])
def test_dates_and_times_in_bulk(zone):
    days = [dt.date(2024, 1, 1) + dt.timedelta(number) for number in range(1000)]
    listed = ", ".join(f"'{day}'" for day in days)
    for where, rows in (
        (f"day IN ({listed})", [0, 3, 5]),
        (f"naive IN ({listed})", [0]),
        (f"ts IN ({listed})", [3] if zone is None else [0]),
        (f"ns IN ({listed})", [0] if zone is None else [2]),
        (f"sec NOT IN ({listed})", [2, 3]),
        (f"naive IN ({listed}, '2026-03-08 02:30:00')", [0, 2]),
        (f"ts IN ({listed}, '2026-03-08 02:30:00')", [3] if zone is None else [0, 2]),
    ):
        found = predicate(where, TABLE.schema, Clock(zone)).matches(TABLE.to_batches()[0]).to_pylist()
        assert [at for at, matched in enumerate(found) if matched] == rows, where[:20]


class TestPruning:
    """Bounds are searched in the sorted list, whatever its length."""

    FILES = tuple(file_of(pa.table({"id": [at * 100, at * 100 + 99]})) for at in range(50))
    SCHEMA = pa.schema({"id": pa.int64()})

    def kept(self, where):
        return [
            at for at, keeps in enumerate(may_match(dispatch.predicate(where, self.SCHEMA), self.FILES)) if keeps
        ]

    def test_only_files_with_values(self):
        listed = ", ".join(map(str, [*range(150, 250), *range(4000, 4200, 2), 10**18]))
        assert self.kept(f"id IN ({listed})") == [1, 2, 40, 41]
        assert self.kept(f"id IN ({listed}) AND id < 200") == [1]
        assert self.kept(f"NOT id IN ({listed})") == list(range(50))
        assert self.kept(f"id + 0 IN ({listed})") == list(range(50))
        assert self.kept(pl.col("id").is_in([*range(150, 250), 4000])) == [1, 2, 40]

    def test_files_of_which_all_values_are_listed(self):
        everything = ", ".join(map(str, range(100, 4900)))
        assert self.kept(f"id NOT IN ({everything})") == [0, 49]
        assert self.kept(~pl.col("id").is_in(list(range(100, 4900)))) == [0, 49]

    def test_nulls_and_nan(self):
        listed = numbers(1000)
        for column, where, keeps in (
            (pa.array([1, None]), "id NOT IN ({})", True),  # kept, though no row matches: bounds do not tell
            (pa.array([1, 1]), "id NOT IN ({})", False),
            (pa.array([None, None], pa.int64()), "id IN ({})", False),
            (pa.array([None, None], pa.int64()), "id IN ({}) IS NULL", True),
            (pa.array([1.0, NAN]), "id NOT IN ({})", True),
            (pa.array([0.5, NAN]), "id IN ({})", False),
            (pa.array([-0.0]), "id IN ({})", True),
        ):
            table = pa.table({"id": column})
            found = may_match(predicate(where.format(listed), table.schema), [file_of(table)])
            assert found == [keeps], (column, where)

    def test_partition_values(self):
        files = [FileInfo(f"t/id={text}/a", 1, 1, partition=(("id", text),)) for text in ("7", "2000", None)]
        condition = predicate(f"id IN ({numbers(1000)})", self.SCHEMA)
        assert may_match(condition, files, {"id": pa.int64()}) == [True, False, False]
        condition = predicate(f"id NOT IN ({numbers(1000)})", self.SCHEMA)
        assert may_match(condition, files, {"id": pa.int64()}) == [False, True, False]

    def test_strings(self):
        files = [file_of(pa.table({"s": [f"{letter}0", f"{letter}9"]})) for letter in "abäz"]
        listed = numbers(1000, "'b{}'")
        assert may_match(predicate(f"s IN ({listed}, 'ä5')", pa.schema({"s": pa.string()})), files) == [
            False, True, True, False,
        ]  # fmt: skip
