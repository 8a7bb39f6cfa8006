"""Polars expressions and Spark Columns: they keep the semantics of their library, prune the same files as SQL,
and are refused if they are not evaluated row by row."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import subprocess
import sys
import zoneinfo
from decimal import Decimal
from functools import reduce

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.conditions import tables
from helpers.files import file_of
from parketto import ColumnNotFound, sql
from parketto.errors import InvalidArgument
from parketto.expressions.conditions import updated
from parketto.expressions.dispatch import assignments, predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.spark import spark_sql
from parketto.expressions.spark_sql import to_sql
from parketto.expressions.spark_tree import Call, Convert, Name, Text, Value
from parketto.expressions.time_zones import Clock
from parketto.parquet.partition_spec import partition_types

pytestmark = pytest.mark.spark

NAN = float("nan")
UTC = dt.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, None, 4]),
        "big": pa.array([2**64 - 1, None, 0, 7], pa.uint64()),
        "tiny": pa.array([-1, None, 5, 127], pa.int8()),
        "s": pa.array(["a", "B%", None, "x_y"]),
        "d": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal("-3.00")], pa.decimal128(8, 2)),
        "f": pa.array([1.5, NAN, None, -2.0]),
        "f4": pa.array([0.1, NAN, None, 2.0], pa.float32()),
        "day": pa.array([dt.date(2024, 1, 1), None, dt.date(2024, 5, 1), dt.date(1999, 1, 1)]),
        "ns": pa.array([1, None, 10**18, -1], pa.timestamp("ns")),
        "utc": pa.array([0, None, 10**15, 5], pa.timestamp("us", "UTC")),
        "sec": pa.array([0, None, 10, 5], pa.timestamp("s")),
        "dict": pa.array(["a", None, "b", "a"]).dictionary_encode(),
        "view": pa.array(["a", None, "b", "a"], pa.string_view()),
        "raw": pa.array([b"a", None, b"\xff", b""]),
        "ok": pa.array([True, None, False, True]),
        "list": pa.array([[1], None, [], [2]]),
        "rec": pa.array([{"x": 1}, None, {"x": None}, {"x": 4}]),
    }
)


def wall(*parts):
    """A wall-clock time, without a time zone."""
    return dt.datetime(*parts)  # noqa: DTZ001


HOSTILE = ["a.b", "a b", 'qu"ote', "tick`", "[0]", "x;y", "select", "größe", " ", "a'b", "value", "back\\slash"]


def matching(where, rows=ROWS):
    found = predicate(where, rows.schema).matches(rows)
    assert found.null_count == 0
    return [at for at, matched in enumerate(found.to_pylist()) if matched]


def col(name):
    return pl.col(name)


def truthy(value):
    return bool(value)


PAIRS = [
    (col("id") == 1, "id = 1", [0]),
    (col("id") != 1, "id <> 1", [1, 3]),
    (~(col("id") == 1), "NOT id = 1", [1, 3]),
    (pl.lit(1) < col("id"), "id > 1", [1, 3]),
    (col("id").is_in([1, 4]), "id IN (1, 4)", [0, 3]),
    (~col("id").is_in([1, 5]), "id NOT IN (1, 5)", [1, 3]),
    (col("id").is_in(list(range(3, 30))), f"id IN ({', '.join(map(str, range(3, 30)))})", [3]),
    (col("id").is_between(2, 4), "id BETWEEN 2 AND 4", [1, 3]),
    (col("id").is_between(2, 4, closed="left"), "id >= 2 AND id < 4", [1]),
    (~col("id").is_between(2, 4), "id NOT BETWEEN 2 AND 4", [0]),
    (col("id").is_null(), "id IS NULL", [2]),
    (~col("id").is_null(), "id IS NOT NULL", [0, 1, 3]),
    (col("id").is_not_null() & col("ok"), "id IS NOT NULL AND ok", [0, 3]),
    (~col("ok"), "NOT ok", [2]),
    (col("ok") | (col("id") == 2), "ok OR id = 2", [0, 1, 3]),
    (col("id").eq_missing(None), "id IS NOT DISTINCT FROM NULL", [2]),
    (col("id").ne_missing(1), "id IS DISTINCT FROM 1", [1, 2, 3]),
    (col("f") > 1.0, "f > 1", [0, 1]),
    (col("f") <= 1.5, "f <= 1.5", [0, 3]),
    (col("f").is_nan(), "isnan(f)", [1]),
    (col("f4") == 0.1, "f4 = 0.1", [0]),
    (col("big") == 7, "big = 7", [3]),
    (col("tiny") < 100, "tiny < 100", [0, 2]),
    (col("s") == "a", "s = 'a'", [0]),
    (col("s").is_in(["a", "x_y"]), "s IN ('a', 'x_y')", [0, 3]),
    (col("s").str.starts_with("x"), "startswith(s, 'x')", [3]),
    (col("dict") == "a", "dict = 'a'", [0, 3]),
    (col("view") > "a", "view > 'a'", [2]),
    (col("day") >= dt.date(2024, 1, 1), "day >= '2024-01-01'", [0, 2]),
    (col("day") < wall(2024, 1, 1, 1), "day < TIMESTAMP '2024-01-01 01:00:00'", [0, 3]),
    (col("utc") > dt.datetime(1970, 1, 1, tzinfo=UTC), "utc > TIMESTAMP '1970-01-01 00:00:00+00:00'", [2, 3]),
    (col("sec") >= wall(1970, 1, 1, 0, 0, 5), "sec >= '1970-01-01 00:00:05'", [2, 3]),
    (col("ns") > wall(2000, 1, 1), "ns > '2000-01-01'", [2]),
    (col("d") == Decimal("1.50"), "d = 1.5", [0]),
    (col("list").is_null(), "list IS NULL", [1]),
    (col("rec").struct.field("x") == 4, "rec.x = 4", [3]),
    (pl.sql_expr("id > 1 AND ok"), "id > 1 AND ok", [3]),
    (pl.lit(True), "TRUE", [0, 1, 2, 3]),
    (pl.lit(None), "NULL", []),
]  # fmt: skip
FILES = [file_of(pa.Table.from_batches([ROWS.slice(at, 1)])) for at in range(4)]
FILES += [file_of(pa.Table.from_batches([ROWS])), file_of(pa.Table.from_batches([ROWS.slice(1, 2)]))]


def test_polars_widens_floats_to_a_typed_number():
    for where, expected in [
        (col("f4") == pl.lit(0.1, pl.Float64), []),
        (col("f4") > pl.lit(0.1, pl.Float64), [0, 1, 3]),
    ]:
        assert matching(where) == expected
        kept = may_match(predicate(where, ROWS.schema), FILES[:4])
        assert all(kept[at] for at in expected)


@pytest.mark.parametrize(("where", "text", "rows"), PAIRS, ids=[text for _, text, _ in PAIRS])
def test_polars_expressions_match_the_same_rows_as_sql(where, text, rows):
    assert matching(where) == matching(text) == rows


# Conditions that pruning does not evaluate: functions of columns, and decimals.
OPAQUE = {"isnan(f)", "startswith(s, 'x')", "rec.x = 4", "d = 1.5", "f4 = 0.1"}


@pytest.mark.parametrize(("where", "text"), [pair[:2] for pair in PAIRS], ids=[text for _, text, _ in PAIRS])
def test_polars_expressions_prune_the_same_files_as_sql(where, text):
    ours = may_match(predicate(where, ROWS.schema), FILES)
    theirs = may_match(predicate(text, ROWS.schema), FILES)
    assert ours == theirs if text not in OPAQUE else all(ours)


def test_polars_expressions_prune_files():
    assert may_match(predicate(col("id") == 1, ROWS.schema), FILES) == [True, False, False, False, True, False]


@pytest.mark.parametrize("values", [("1", "2", None), ("2024-01-01", "2024-01-02", None), ("007", "b", None)])
def test_partition_columns_that_exist_only_in_the_path_prune(values):
    files = [file_of(pa.table({"x": [1]}), (("p", value),)) for value in values]
    types = partition_types(files)
    schema = files[0].schema.append(pa.field("p", types["p"]))
    first = {pa.int64(): 1, pa.date32(): dt.date(2024, 1, 1), pa.string(): "007"}[types["p"]]
    cases = [
        (col("p") == first, [True, False, False]),
        (~(col("p") == first), [False, True, False]),
        (col("p").is_in([first]), [True, False, False]),
        (col("p").is_null() | (col("p") > first), [False, True, True]),
        # A part that pruning does not understand must not narrow the rest, also not below a negation.
        ((col("p") == first) & (col("x") % 2 == 1), [True, False, False]),
        ((col("p") == first) | (col("x") % 2 == 1), [True, True, True]),
        (~((col("p") == first) & (col("x") % 2 == 0)), [True, True, True]),
        (~((col("p") == first) | (col("x") % 2 == 0)), [False, True, False]),
        ((col("p") == first) ^ (col("x") == 1), [True, True, True]),
    ]
    for where, expected in cases:
        assert may_match(predicate(where, schema), files, types) == expected, str(where)


def test_timestamps_are_truncated_to_the_coarser_unit_as_in_polars():
    """A Python datetime has microseconds, and equals all nanoseconds within its microsecond."""
    rows = pa.record_batch({"t": pa.array([10**9 + 700], pa.timestamp("ns"))})
    file = file_of(pa.Table.from_batches([rows]))
    second = wall(1970, 1, 1, 0, 0, 1)
    for where in (col("t") == second, col("t") <= second, col("t").is_between(second, second)):
        assert matching(where, rows) == [0]
        assert may_match(predicate(where, rows.schema), [file]) == [True]
    for where in (col("t") < second, col("t") == wall(1970, 1, 1, 0, 0, 1, 1)):
        assert matching(where, rows) == []
        assert may_match(predicate(where, rows.schema), [file]) == [False]


def test_large_integers_are_not_pruned_by_float_comparisons():
    rows = pa.record_batch({"x": [2**53 + 1]})
    where = predicate(col("x") == float(2**53), rows.schema)
    assert may_match(where, [file_of(pa.Table.from_batches([rows]))]) == [True]
    assert where.matches(rows).to_pylist() == [True], "Polars compares as floats"


LITERALS = {
    "i": [-2, 0, 1, 1.5, None],
    "f": [-1.0, 0.5, 2, NAN, 1e300, float("inf"), None],
    "s": ["", "a", "ab", "b", None],
    "t": [dt.date(2024, 1, 2), wall(2024, 1, 3), wall(2024, 1, 3, 1), None],
}


@st.composite
def simple_conditions(draw):
    name = draw(st.sampled_from(sorted(LITERALS)))
    value = st.sampled_from(LITERALS[name])
    kind = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "bool", "opaque"]))
    if kind == "compare":
        operator = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge", "eq_missing", "ne_missing"]))
        return getattr(col(name), operator)(pl.lit(draw(value)))
    if kind == "in":
        whole = [each for each in LITERALS[name] if each is None or type(each) is type(LITERALS[name][0])]
        listed = draw(st.lists(st.sampled_from(whole), max_size=3))
        dtype = {"i": pl.Int64, "f": pl.Float64, "s": pl.String, "t": pl.Date}[name]
        return col(name).is_in(pl.lit(listed, dtype=pl.List(dtype)), nulls_equal=draw(st.booleans()))
    if kind == "between":
        closed = draw(st.sampled_from(["both", "left", "none"]))
        return col(name).is_between(pl.lit(draw(value)), pl.lit(draw(value)), closed=closed)
    if kind == "null":
        return col(name).is_null() if draw(st.booleans()) else col(name).is_not_null()
    return col("b") if kind == "bool" else draw(st.sampled_from([col("i") % 2 == 0, col("s").str.len_chars() > 1]))


def joined(parts):
    return (
        st.tuples(parts, parts).map(lambda pair: pair[0] & pair[1])
        | st.tuples(parts, parts).map(lambda pair: pair[0] | pair[1])
        | parts.map(lambda part: ~part)
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(tables(), min_size=1, max_size=3), st.recursive(simple_conditions(), joined, max_leaves=5))
def test_no_file_with_a_row_that_polars_matches_is_pruned(contents, where):
    condition = predicate(where, contents[0].schema)
    files = [file_of(table) for table in contents]
    for table, keep in zip(contents, may_match(condition, files), strict=True):
        plain = [found is True for found in pl.from_arrow(table).select(where.alias("found")).to_series()]
        assert condition.matches(table.to_batches()[0]).to_pylist() == plain, str(where)
        assert keep or not any(plain), str(where)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (col("id").sum() > 1, r'col\("id"\)\.sum\(\) is not known to be calculated row by row'),
        (col("id") > col("id").mean(), r'col\("id"\)\.mean\(\) is not known'),
        (col("id").sum().over("s") > 1, "not known to be calculated row by row"),
        (col("id").shift() > 1, r"shift.* is not known"),
        (col("id").cum_sum() > 1, r"cum_sum.* is not known"),
        (col("id").rank() > 1, r"rank.* is not known"),
        (col("id").sort() > 1, r"sort.* is not known"),
        (col("id").is_duplicated(), r"is_duplicated.* is not known"),
        (col("id").fill_null(strategy="forward") > 1, "is not known"),
        (col("id").fill_null(col("id").max()) > 1, r'col\("id"\)\.max\(\) is not known'),
        (col("ok").drop_nulls(), "is not known"),
        (col("ok").filter(col("id") > 1), "is not known"),
        (col("id").is_in(col("big").implode()), "is not known"),
        (col("id") > pl.lit(pl.Series([1, 2, 3, 4])), "is not known"),
        (pl.len() > 1, r"len\(\) is not known"),
        (col("id").sample(4) > 1, "is not known"),
        (col("s").str.to_date() > dt.date(2024, 1, 1), "is not known"),
        (col("s").cast(pl.Categorical).cast(pl.UInt32) > 0, "is not known"),
        (col("id").map_elements(truthy, return_dtype=pl.Boolean), "Python functions are not available"),
        (pl.all(), "several columns"),
        (pl.col("id", "big") > 1, "several columns"),
        (pl.col("^i.*$") > 1, "several columns"),
        (cs.numeric() > 1, "several columns"),
        (pl.any_horizontal(pl.all()), "several columns|by a pattern"),
        (col("id"), "a value of type int64, not a condition"),
        (col("s") > 1, r'col\("s"\).*cannot compare'),
        (object(), "an SQL string, a PyArrow expression, a Polars expression or a Spark Column, got <object"),
        (pl.Series([True]), "an SQL string, a PyArrow expression, a Polars expression or a Spark Column"),
    ],
)  # fmt: skip
def test_invalid_polars_conditions_are_refused(where, said):
    with pytest.raises(InvalidArgument, match=said) as caught:
        predicate(where, ROWS.schema)
    assert "\n" not in str(caught.value) or isinstance(where, pl.Series)


def test_python_functions_are_refused_even_if_they_could_be_pickled(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", pytest.importorskip("pyspark.cloudpickle"))
    with pytest.raises(InvalidArgument, match="calls a Python function"):
        predicate(col("id").map_elements(truthy, return_dtype=pl.Boolean), ROWS.schema)


@pytest.mark.parametrize("where", [col("idd") == 1, col("ID") == 1, (col("id") > 0) & (col("no") > 1)])
def test_unknown_columns_are_listed_with_the_choices(where):
    with pytest.raises(ColumnNotFound, match=r"not found: '.*'; available columns: 'id', 'big'"):
        predicate(where, ROWS.schema)


def test_duplicate_column_names_are_refused():
    schema = pa.schema([("x", pa.int64()), ("x", pa.int64())])
    with pytest.raises(InvalidArgument, match="duplicate column names"):
        predicate(col("x") == 1, schema)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_column_names_in_polars(name):
    rows = pa.record_batch([pa.array([1, 2]), pa.array([9, 9])], names=[name, "other"])
    condition = predicate(col(name) == 2, rows.schema)
    assert condition.columns == (name,), "only the columns that are named are read"
    assert condition.matches(rows).to_pylist() == [False, True]


def changed(values, where, rows=ROWS):
    mask = predicate(where, rows.schema).matches(rows)
    return updated(rows, mask, pickle.loads(pickle.dumps(assignments(values, rows.schema))))


@pytest.mark.parametrize(
    ("column", "value", "result"),
    [
        ("id", col("id") * 2, 2),
        ("id", pl.lit(7), 7),
        ("id", col("f") * 2, 3),
        ("tiny", col("id") + 1, 2),
        ("s", col("s") + "!", "a!"),
        ("s", pl.lit(None), None),
        ("d", col("d") * 2, Decimal("3.00")),
        ("f4", col("id"), 1.0),
        ("day", pl.lit("2024-02-29"), dt.date(2024, 2, 29)),
        ("utc", pl.lit(wall(2024, 2, 29)), dt.datetime(2024, 2, 29, tzinfo=UTC)),
        ("dict", col("dict").str.to_uppercase(), "A"),
        ("view", pl.when(col("ok")).then(pl.lit("yes")).otherwise(pl.lit("no")), "yes"),
        ("raw", pl.lit(b"\x00"), b"\x00"),
        ("ok", col("id") == 2, False),
    ],
)
def test_new_values_have_the_column_type(column, value, result):
    after = changed({column: value}, col("id") == 1)
    assert after.schema.equals(ROWS.schema)
    after.validate(full=True)
    assert after.column(column)[0].as_py() == result
    assert str(after.column(column).to_pylist()[1:]) == str(ROWS.column(column).to_pylist()[1:])


@pytest.mark.parametrize(
    ("column", "value"),
    [("tiny", pl.lit(128)), ("id", col("s")), ("s", col("id")), ("sec", col("utc")), ("ok", pl.lit(1))],
)
def test_values_that_cannot_fit_are_refused_up_front(column, value):
    with pytest.raises(InvalidArgument, match=f"column '{column}' of type"):
        assignments({column: value}, ROWS.schema)


def test_error_names_the_first_calculated_value_that_does_not_fit():
    (change,) = assignments({"tiny": col("id") * 100}, ROWS.schema)
    with pytest.raises(
        InvalidArgument, match=r"200 \(.*col\(\"id\"\).*\) does not fit into column 'tiny' of type int8"
    ):
        change.apply(ROWS)


def test_null_is_refused_for_non_nullable_columns():
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    rows = pa.record_batch([pa.array([1]), pa.array([None], pa.int64())], schema=schema)
    with pytest.raises(InvalidArgument, match="may not be NULL"):
        assignments({"x": col("y")}, schema)[0].apply(rows)


def test_every_expression_sees_the_old_row_whatever_its_language():
    rows = pa.record_batch({"a": [1, 2], "b": [10, 20], "c": [5, 5]})
    after = changed({"a": col("b"), "b": sql("a"), "c": pc.field("a")}, "TRUE", rows)
    assert after.to_pydict() == {"a": [10, 20], "b": [1, 2], "c": [1, 2]}


def test_run_time_errors_of_polars_are_reported():
    where = predicate(col("s").cast(pl.Int64) > 1, ROWS.schema)
    with pytest.raises(InvalidArgument, match=r"failed: .*conversion from `str` to `i64` failed"):
        where.matches(ROWS)


def test_workers_without_polars_raise_engine_unavailable(tmp_path):
    content = tmp_path / "condition"
    content.write_bytes(pickle.dumps(predicate(col("id") > 1, ROWS.schema)))
    code = (
        "import pickle, sys\n"
        "sys.modules['polars'] = None\n"
        "import pyarrow as pa\n"
        "from parketto.errors import EngineUnavailable\n"
        f"condition = pickle.loads(open({str(content)!r}, 'rb').read())\n"
        "try:\n"
        "    condition.matches(pa.record_batch({'id': [1]}))\n"
        "except EngineUnavailable as error:\n"
        "    assert 'pip install polars' in str(error)\n"
        "else:\n"
        "    raise SystemExit('it should have failed')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


# Spark: the same Columns in classic Spark and over Spark Connect, which needs no server to build them.


@pytest.fixture(params=["classic", "connect"])
def functions(request):
    pytest.importorskip("pyspark")
    if request.param == "connect":
        pytest.importorskip("grpc")
        from pyspark.sql.connect import functions

        return functions
    spark = request.getfixturevalue("spark")
    if "connect" in type(spark).__module__:
        pytest.skip("there is no JVM here")
    from pyspark.sql import functions

    return functions


COLUMNS = [
    (lambda f: f.col("id") == 1, [0]),
    (lambda f: f.col("ID") != 1, [1, 3]),
    (lambda f: ~(f.col("id") == 1), [1, 3]),
    (lambda f: f.col("id").isin(1, None), [0]),
    (lambda f: ~f.col("id").isin(1, None), []),
    (lambda f: ~f.col("id").isin([]), [0, 1, 2, 3]),
    (lambda f: f.col("id").between(2, 4), [1, 3]),
    (lambda f: f.col("id").isNull(), [2]),
    (lambda f: f.col("id").isNotNull() & f.col("ok"), [0, 3]),
    (lambda f: f.col("ok") | (f.col("id") == 2), [0, 1, 3]),
    (lambda f: f.col("id").eqNullSafe(None), [2]),
    (lambda f: f.col("f") == float("nan"), [1]),
    (lambda f: f.col("f") < float("inf"), [0, 3]),
    (lambda f: f.col("f") > -1e300, [0, 1, 3]),
    (lambda f: f.col("f4") == 0.1, [0]),
    (lambda f: f.col("f4") == f.lit(0.1).cast("double"), []),
    (lambda f: f.col("f4") > f.lit(0.1).cast("double"), [0, 1, 3]),
    (lambda f: f.isnan("f"), [1]),
    (lambda f: f.col("d") == Decimal("1.50"), [0]),
    (lambda f: f.col("d") < Decimal("-1E+0"), [3]),
    (lambda f: -f.col("id") < -1, [1, 3]),
    (lambda f: f.col("id") % 2 == 0, [1, 3]),
    (lambda f: f.col("id") / 2 == 0.5, [0]),
    (lambda f: f.col("s") == "B%", [1]),
    (lambda f: f.col("s").like("%\\_y"), [3]),
    (lambda f: f.col("s").ilike("b_"), [1]),
    (lambda f: f.col("s").rlike("^[a-z]$"), [0]),
    (lambda f: f.col("s").startswith("x") | f.col("s").endswith("%") | f.col("s").contains("a"), [0, 1, 3]),
    (lambda f: f.col("s").substr(2, 1) == "_", [3]),
    (lambda f: f.upper("s") == f.lit("A"), [0]),
    (lambda f: f.col("day") + f.expr("INTERVAL 1 MONTH") == dt.date(2024, 2, 1), [0]),
    (lambda f: f.col("utc") + f.lit(dt.timedelta(-1, 1)) < dt.datetime(1970, 1, 1, tzinfo=UTC), [0, 3]),
    (lambda f: f.current_timestamp() - f.expr("INTERVAL '7' HOUR") < f.col("utc"), []),
    (lambda f: f.trim(f.lit("  a ")) == f.col("s"), [0]),
    (lambda f: f.concat(f.col("s"), f.lit("!")) == "a!", [0]),
    (lambda f: f.length("s") == 3, [3]),
    (lambda f: f.coalesce(f.col("id"), f.lit(0)) == 0, [2]),
    (lambda f: f.when(f.col("id") == 1, "x").when(f.col("id") == 2, "y").otherwise("z") == "x", [0]),
    (lambda f: f.when(f.col("id") == 1, "x") == "x", [0]),
    (lambda f: f.col("id").cast("string") == "4", [3]),
    (lambda f: f.col("s").try_cast("int").isNull(), [0, 1, 2, 3]),
    (lambda f: f.col("d").cast("decimal(10,1)") == Decimal("2.3"), [1]),
    (lambda f: f.col("day") == dt.date(2024, 1, 1), [0]),
    (lambda f: f.year("day") == 2024, [0, 2]),
    (lambda f: f.date_trunc("month", f.col("day")) == dt.date(1999, 1, 1), [3]),
    (lambda f: f.col("raw") == f.lit(b"\xff"), [2]),
    (lambda f: f.col("rec.x") == 4, [3]),
    (lambda f: f.col("rec")["x"] == 4, [3]),
    (lambda f: f.col("rec").getField("x") == 4, [3]),
    (lambda f: f.expr("id > 1 AND ok -- the last"), [3]),
    (lambda f: f.expr("id = 1 OR id = 2") & f.col("ok"), [0]),
    (lambda f: (f.col("id") == 1).alias("found"), [0]),
    (lambda f: reduce(lambda a, b: a | b, [f.col("id") == n for n in range(300)]), [0, 1, 3]),
    (lambda f: f.lit(True), [0, 1, 2, 3]),
    (lambda f: f.lit(None), []),
]  # fmt: skip


@pytest.mark.parametrize(("where", "rows"), COLUMNS, ids=range(len(COLUMNS)))
def test_spark_columns_match_the_expected_rows(functions, where, rows):
    condition = pickle.loads(pickle.dumps(predicate(where(functions), ROWS.schema)))
    found = condition.matches(ROWS)
    assert [at for at, matched in enumerate(found.to_pylist()) if matched] == rows


@pytest.mark.parametrize("name", [*HOSTILE, "*", "", "`", "a`.`b"])
def test_hostile_column_names_and_strings_in_spark(functions, name):
    rows = pa.record_batch({name: pa.array(["x", name, "\\", "'"]), "other": ["9"] * 4})
    quoted = f"`{name.replace('`', '``')}`"
    if name == "":
        quoted = None  # Spark cannot quote an empty name
    for at, text in enumerate(["x", name, "\\", "'"]) if quoted else ():
        condition = predicate(functions.col(quoted) == text, rows.schema)
        assert condition.columns == (name,)
        assert condition.matches(rows).to_pylist() == [each == text for each in rows.column(0).to_pylist()], at


def test_columns_of_a_spark_data_frame_match_rows(spark):
    frame = spark.createDataFrame([(1, (2,))], "id long, rec struct<x: long>")
    assert matching(frame.id > 1) == [1, 3]
    assert matching((frame["id"] == 4) & (frame["rec.x"] == 4)) == [3]


def test_spark_columns_prune_the_same_files_as_sql(functions):
    cases = [
        (functions.col("id") == 1, "id = 1"),
        (functions.col("day").isin(dt.date(2024, 5, 1)), "day IN ('2024-05-01')"),
        (~(functions.col("s") >= "b"), "NOT s >= 'b'"),
        (functions.col("utc") > dt.datetime(2001, 1, 1, tzinfo=UTC), "utc > '2001-01-01'"),
    ]
    for where, text in cases:
        found = may_match(predicate(where, ROWS.schema), FILES)
        assert found == may_match(predicate(text, ROWS.schema), FILES)
        assert not all(found)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (lambda f: f.sum("id") > 1, "Spark's function 'sum' with 1 arguments is not available: .*ABS.*merge them"),
        (lambda f: f.xxhash64("id") > 1, "'xxhash64'"),
        (lambda f: f.rand() > 0.5, "'rand'"),
        (lambda f: f.current_user() == f.col("s"), "'current_user'"),
        (lambda f: f.ceil("f", f.lit(1)) > 1, "'ceil' with 2 arguments"),
        (lambda f: f.udf(lambda x: x > 1, "boolean")(f.col("id")), "user-defined function '<lambda>'"),
        (lambda f: f.col("list")[0] == 1, "only named fields"),
        (lambda f: f.col("*"), r"'\*' is not a value|name the columns"),
        (lambda f: f.col("id").asc(), "a sort order is not a value"),
        (lambda f: f.col("id").cast("array<int>").isNull(), "CAST to Spark's type"),
        (lambda f: f.lit(dt.timedelta(1)) + f.col("id") > 1, "can be added to dates and timestamps, not to int64"),
        (lambda f: f.expr('s = "a"'), "double quotes"),
        (lambda f: f.expr("s = 'a\\'b'"), "backslashes"),
        (lambda f: f.expr("ok) OR (TRUE"), "not valid SQL"),
        (lambda f: f.expr("sum(id) > 1"), "SUM looks at more than one row"),
        (lambda f: f.col("id") + 1, "not a condition"),
    ],
)  # fmt: skip
def test_invalid_spark_columns_are_refused(functions, where, said):
    with pytest.raises(InvalidArgument, match=said):
        predicate(where(functions), ROWS.schema)


def test_windows_are_refused(spark):
    from pyspark.sql import Window, functions

    where = functions.row_number().over(Window.orderBy("id")) == 1
    with pytest.raises(InvalidArgument, match="window functions are not available"):
        predicate(where, ROWS.schema)


def test_unknown_columns_in_spark_are_listed_with_the_choices(functions):
    with pytest.raises(ColumnNotFound, match=r"not found: 'idd'; available columns: 'id', 'big'"):
        predicate(functions.col("idd") == 1, ROWS.schema)


def test_new_values_from_spark_columns_have_the_column_type(functions):
    values = {
        "id": functions.col("id") * 2,
        "s": functions.concat(functions.col("s"), functions.lit("'\\")),
        "d": functions.lit(Decimal("1.5")),
        "f": functions.lit(float("nan")),
        "day": functions.lit(dt.date(2024, 2, 29)),
        "raw": functions.lit(b"\x00"),
        "view": functions.when(functions.col("ok"), functions.lit("yes")).otherwise(functions.col("view")),
        "dict": functions.lit(None),
    }
    after = changed(values, functions.col("id") == 1).to_pylist()[0]
    assert repr(after["f"]) == "nan"
    expected = {"id": 2, "s": "a'\\", "d": Decimal("1.50"), "day": dt.date(2024, 2, 29), "raw": b"\x00"}
    assert {name: after[name] for name in expected} == expected
    assert (after["view"], after["dict"]) == ("yes", None)
    with pytest.raises(InvalidArgument, match="column 'tiny' of type int8"):
        assignments({"tiny": functions.lit(128)}, ROWS.schema)


NOON = wall(2024, 7, 1, 12)


@pytest.mark.parametrize(
    ("tree", "instant"),
    [
        (Call("=", (Name(("utc",)), Value(NOON.replace(tzinfo=UTC)))), wall(2024, 7, 1, 12)),
        (Call("=", (Name(("wall",)), Value(NOON.replace(tzinfo=UTC)))), wall(2024, 7, 1, 12)),
        (Call("in", (Name(("UTC",)), Value(NOON))), wall(2024, 7, 1, 10)),
        (Call("=", (Name(("wall",)), Value(NOON))), wall(2024, 7, 1, 10)),
        (Call("=", (Name(("utc",)), Value("2024-07-01 12:00:00"))), wall(2024, 7, 1, 10)),
        (Call("=", (Name(("utc",)), Value("2024-07-01 12:00:00Z"))), wall(2024, 7, 1, 12)),
        (Call("=", (Name(("utc",)), Value(dt.date(2024, 1, 1)))), wall(2023, 12, 31, 23)),
        (Call("=", (Name(("wall",)), Value("2024-07-01"))), wall(2024, 6, 30, 22)),
        (Call("=", (Call("coalesce", (Name(("utc",)),)), Value(dt.date(2024, 7, 1)))), wall(2024, 6, 30, 22)),
        (
            Call("=", (Convert(Value("2024-07-01 12:00:00"), "timestamp", False), Name(("utc",)))),
            wall(2024, 7, 1, 10),
        ),
        (Call("=", (Call("hour", (Name(("utc",)),)), Value(14))), wall(2024, 7, 1, 12)),
        (Call("=", (Call("date_trunc", (Value("day"), Name(("utc",)))), Name(("utc",)))), wall(2024, 6, 30, 22)),
        (Text("utc = TIMESTAMP '2024-07-01 12:00:00'"), wall(2024, 7, 1, 10)),
    ],
    ids=str,
)
def test_conditions_use_the_time_zone_of_the_clock(tree, instant):
    """Each condition matches one instant or its wall-clock time in Berlin, and not an hour before or after."""
    shown = instant.replace(tzinfo=UTC).astimezone(BERLIN).replace(tzinfo=None)
    hours = [dt.timedelta(hours=hour) for hour in (-1, 0, 1)]
    rows = pa.record_batch(
        {
            "utc": pa.array([instant + hour for hour in hours], pa.timestamp("us", "UTC")),
            "wall": pa.array([shown + hour for hour in hours], pa.timestamp("us")),
        }
    )
    condition = predicate(to_sql(tree), rows.schema, Clock("Europe/Berlin"))
    assert condition.matches(rows).to_pylist() == [False, True, False]


def test_spark_columns_match_the_same_instants_as_in_spark(spark, tmp_path):
    """Compared with the rows that Spark itself matches, in a session whose time zone is not UTC."""
    from pyspark.sql import functions

    step = 30 * 60 * 1_000_000
    first = int(dt.datetime(2024, 7, 1, 9, tzinfo=UTC).timestamp()) * 1_000_000
    counts = [first + n * step for n in range(12)]
    table = pa.table(
        {
            "n": range(12),
            "utc": pa.array(counts, pa.timestamp("us", "UTC")),
            "wall": pa.array(counts, pa.timestamp("us")),
        }
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        rows = [(each["n"], each["utc"], each["wall"]) for each in table.to_pylist()]
        frame = spark.createDataFrame(rows, "n int, utc timestamp, wall timestamp_ntz")
        instant = dt.datetime(2024, 7, 1, 12, tzinfo=UTC)
        for where in (
            functions.col("utc") >= instant,
            functions.col("wall") >= instant,
            functions.col("wall") == functions.lit(instant),
            functions.col("utc") < "2024-07-01 12:00:00",
            functions.col("wall") < "2024-07-01 12:00:00",
            functions.col("utc") > functions.lit("2024-07-01 12:00:00").cast("timestamp"),
            functions.col("utc") >= dt.date(2024, 7, 1),
        ):
            theirs = sorted(row.n for row in frame.filter(where).select("n").collect())
            assert matching(where, table.combine_chunks().to_batches()[0]) == theirs, str(where)
        (change,) = assignments({"wall": functions.lit(instant)}, table.schema)
        assert change.apply(table.to_batches()[0])[0].as_py() == wall(2024, 7, 1, 14)
        assert spark_sql(functions.lit(instant)).count("12:00:00+00:00")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
