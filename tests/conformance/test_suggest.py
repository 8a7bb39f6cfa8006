"""Suggested clustering columns: computed from queries and the current data; nothing is written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from conftest import Place
from parketto.engines.base import Engine


def visits(rows: int = 60_000) -> pa.Table:
    chance = np.random.default_rng(41)
    return pa.table(
        {
            "user": chance.integers(0, 5000, rows),
            "at": pa.array(chance.random(rows), mask=chance.random(rows) < 0.1),
            "flag": chance.integers(0, 2, rows),
            "name": [f"a long prefix {n}" for n in chance.integers(0, 3000, rows)],
            "tags": [["x"]] * rows,
        }
    )


def test_suggested_columns_bring_the_predicted_reads(local: Place, engine: Engine) -> None:
    local.write_files({"f.parquet": visits()})
    state = local.state()
    dataset = local.dataset(engine=engine)
    advice = dataset.suggest(["user = 7", "at < 0.01"], target_mb_per_file=0.05)
    assert local.state() == state
    assert local.left_behind() == []
    best = advice["suggestions"][0]
    assert (sorted(best["columns"]), best["curve"]) == (["at", "user"], "hilbert")
    assert advice["reads_now"] == 1.0
    assert best["reads"] < 0.3
    assert best["reads"] == pytest.approx(sum(best["reads_by_query"].values()) / 2)
    assert 4500 <= advice["distinct_values"]["user"] <= 5500
    done = dataset.optimize(best["columns"], target_mb_per_file=0.05, curve=best["curve"])
    after = done["expected_reads"]["user"]["after"]["point"]
    assert after == pytest.approx(best["reads_by_query"]["user = 7"], abs=0.1), "the prediction matches the result"


def test_weights_decide_and_low_cardinality_columns_are_left_out(local: Place) -> None:
    local.write_files({"f.parquet": visits()})
    advice = local.dataset().suggest({"user": 100, "flag = 1": 1}, target_mb_per_file=0.05)
    assert advice["suggestions"][0]["columns"] == ["user"]
    assert advice["distinct_values"]["flag"] == 2


def test_strings_with_a_common_prefix_and_max_columns(local: Place) -> None:
    local.write_files({"f.parquet": visits()})
    advice = local.dataset().suggest(["name", "user"], target_mb_per_file=0.05, max_columns=1)
    assert [len(each["columns"]) for each in advice["suggestions"]] == [1]
    advice = local.dataset().suggest(["name", "user"], target_mb_per_file=0.05)
    assert sorted(advice["suggestions"][0]["columns"]) == ["name", "user"]


def test_no_suggestions_for_an_empty_dataset(place: Place) -> None:
    place.write_files({"f.parquet": visits(0)})
    advice = place.dataset().suggest(["user = 7", "at"])
    assert (advice["suggestions"], advice["reads_now"]) == ([], 0.0)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([], "must be a list"),
        ("user", "must be a list"),
        (["nope"], "available columns: 'user'"),
        (["nope = 1"], "nope"),
        (["day"], "none of the queries has a column"),
        (["tags"], "none of the queries has a column"),
        ({"user": 0}, "weight of 'user'"),
        ({"user": "often"}, "weight of 'user'"),
    ],
)
def test_invalid_queries_are_refused(local: Place, queries: object, message: str) -> None:
    local.write_files({"day=1/f.parquet": visits(10)})
    with pytest.raises(ValueError, match=message):
        local.dataset().suggest(queries)  # type: ignore[arg-type]
