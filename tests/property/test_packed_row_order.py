"""The order of rows is Arrow's, for every type: NaN after numbers, NULLs last, equal rows in input order."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from parketto.sorting.order import order_indices, order_keys
from parketto.sorting.ranks import rank

# Texts that are equal for many bytes, end at the border of a word, or differ in a trailing zero byte only.
_TEXTS = ["", "a", "\0", "aa", "é", "a" * 8, "a" * 8 + "\0", "a" * 7 + "b", "a" * 16]
_TEXTS += ["x" * 128, "x" * 129, "x" * 300]
_FLOATS = [float("nan"), -float("nan"), 0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf")]

Values = Callable[[random.Random], object]
KINDS: dict[str, tuple[pa.DataType, Values]] = {
    "text": (pa.string(), lambda chance: chance.choice(_TEXTS) + chance.choice(_TEXTS)),
    "binary": (pa.large_binary(), lambda chance: (chance.choice(_TEXTS) + chance.choice(_TEXTS)).encode()),
    "view": (pa.string_view(), lambda chance: chance.choice(_TEXTS)),
    "category": (pa.dictionary(pa.int8(), pa.string()), lambda chance: chance.choice(_TEXTS)),
    "fixed": (pa.binary(2), lambda chance: chance.choice([b"ab", b"\0a", b"a\0"])),
    "double": (pa.float64(), lambda chance: chance.choice([*_FLOATS, chance.random()])),
    "half": (pa.float16(), lambda chance: np.float16(chance.choice(_FLOATS))),
    "signed": (pa.int64(), lambda chance: chance.choice([-(2**63), 2**63 - 1, chance.randrange(-50, 50)])),
    "unsigned": (pa.uint64(), lambda chance: chance.choice([0, 2**64 - 1, chance.randrange(2**64)])),
    "tiny": (pa.int8(), lambda chance: chance.randrange(-2, 3)),
    "flag": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "decimal": (pa.decimal128(12, 2), lambda chance: Decimal(chance.randrange(-500, 500)) / 100),
    "wide decimal": (pa.decimal256(60, 2), lambda chance: Decimal(chance.randrange(-500, 500)) / 100),
    "time": (pa.timestamp("ns"), lambda chance: chance.choice([0, -5, 10**17])),
    "null": (pa.null(), lambda _: None),
}


def column(kind: str, rows: int, chance: random.Random) -> pa.Array:
    arrow_type, value = KINDS[kind]
    share = chance.choice([0, 0.1, 1])
    return pa.array([None if chance.random() < share else value(chance) for _ in range(rows)], arrow_type)


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_ordered_as_arrow_orders_them(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.choice([1, 2, 3, 10, 100, 1500])
    table = pa.table({kind: column(kind, rows, chance) for kind in KINDS})
    if chance.random() < 0.5:  # several chunks, and arrays that do not begin at their buffers
        table = pa.concat_tables([table.slice(rows // 3), table.slice(1, rows // 2)])
    columns = chance.sample(list(KINDS), chance.randrange(1, 4))

    keys = order_keys(table, columns)
    expected = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    assert order_indices(keys).tolist() == expected.to_pylist(), columns


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("null", "view")])
def test_ranks_of_any_type_keep_the_order(kind: str) -> None:
    chance = random.Random(kind)
    values = column(kind, 3000, chance)
    ranking = rank(values.slice(0, 200), bits=6)
    ordered = values.take(pa.array(order_indices(order_keys(pa.table({"0": values}), ["0"]))))
    codes = ranking(ordered).astype(int)
    assert (np.diff(codes) >= 0).all()
    assert codes.tolist() == [code for at in range(0, 3000, 7) for code in ranking(ordered.slice(at, 7))]
