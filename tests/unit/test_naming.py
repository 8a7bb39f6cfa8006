"""Names of new files: unique, in the order of the rows, and no longer than filesystems allow."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parketto.planning.naming import Naming, Replacement, appended, in_place, time_ordered_id
from parketto.runtime.staging import StagedFile

# Names that resemble each other: every character sorts somewhere else around the '-' and the '.' of new names.
stems = st.text(alphabet="ab -+._=0~é", min_size=1, max_size=6).filter(lambda stem: stem[0] not in "._")
directories = st.lists(stems, min_size=1, max_size=8, unique=True)


def staged(count: int) -> list[StagedFile]:
    return [StagedFile(f"work/{uuid.uuid4().hex}.staged", "?") for _ in range(count)]


def replaced(names: list[str], groups: list[list[str]], operation: str, outputs: int = 1) -> list[str]:
    """The names in a directory after groups of its files were replaced, in the order that rows should have."""
    heads = {group[0]: staged(outputs) for group in groups}
    gone = {name for group in groups for name in group}
    new = in_place(
        operation,
        [Replacement(f"d/{head}", files) for head, files in heads.items()],
        [f"d/{name}" for name in names if name not in gone],
        short=operation in ("compact", "optimized"),
    )
    by_path = {file.path: file.destination for file in new}
    assert len(by_path) == outputs * len(groups)
    order: list[str] = []
    for name in names:
        if name in heads:
            order += [by_path[file.path].removeprefix("d/") for file in heads[name]]
        elif name not in gone:
            order.append(name)
    return order


@settings(max_examples=300, deadline=None)
@given(directories, st.data())
def test_new_files_take_the_place_of_the_old_ones(found: list[str], data: st.DataObject) -> None:
    """Over several operations, whatever the names are: also those that the operations have given."""
    names = sorted(f"{stem}.parquet" for stem in found)
    for _ in range(4):
        cuts = sorted(data.draw(st.sets(st.integers(0, len(names)), max_size=4)))
        parts = [names[start:stop] for start, stop in pairwise(cuts)]
        groups = [part for part in parts if data.draw(st.booleans())]
        operation = data.draw(st.sampled_from(["compact", "optimized", "delete", "update", "merge"]))
        names = replaced(names, groups, operation, data.draw(st.integers(1, 3)))
        assert names == sorted(names)
        assert len(set(names)) == len(names)
        assert all(name.endswith(".parquet") and name[0] not in "._" for name in names)


@pytest.mark.parametrize("operation", ["compact", "update"])
def test_names_do_not_grow(operation: str) -> None:
    names = [f"part-{time_ordered_id()}.parquet" for _ in range(5)]
    lengths = []
    for _ in range(20):
        names = replaced(names, [[names[1]], [names[3]]], operation)
        assert names == sorted(names)
        lengths.append(max(map(len, names)))
    assert lengths == lengths[:1] * 20


def test_pieces_of_a_file_keep_their_order() -> None:
    names = replaced(["a.parquet", "b.parquet", "c.parquet"], [["b.parquet"]], "compact", outputs=3)
    for _ in range(10):
        for at in (1, 2, 3):
            names = replaced(names, [[names[at]]], "delete")
            assert names == sorted(names)
    assert max(map(len, names)) < 150


def test_the_name_is_short_where_the_order_allows_it() -> None:
    plain = r"compact-[0-9a-f]{32}-00000\.parquet"
    names = replaced(["part-1.parquet", "part-2.parquet"], [["part-1.parquet", "part-2.parquet"]], "compact")
    assert re.fullmatch(plain, names[0])
    names = replaced(
        [*names, "part-3.parquet", "part-4.parquet"], [["part-3.parquet", "part-4.parquet"]], "compact"
    )
    assert re.fullmatch(plain, names[1])
    names = replaced(["part-1.parquet", "part-2.parquet"], [["part-2.parquet"]], "compact")
    assert re.fullmatch(f"part-2-{plain}", names[1])
    names = replaced(["part-1.parquet"], [["part-1.parquet"]], "update")
    assert re.fullmatch(r"part-1-update-[0-9a-f]{32}-00000\.parquet", names[0]), "later appends sort after it"


@pytest.mark.parametrize("letter", ["x", "é", "\udcff"], ids=["ascii", "two bytes", "no text"])
def test_long_names_stay_valid(letter: str) -> None:
    size = len(letter.encode("utf-8", "surrogateescape"))
    long = letter * ((255 - len(".parquet")) // size) + ".parquet"
    names = ["a.parquet", long, "\U0001f600.parquet"]
    after = replaced(names, [[long]], "compact")
    assert after == sorted(after)
    assert len(after[1].encode("utf-8", "surrogateescape")) <= 255
    # If all of the name matters, there is no room for an id: then the new file sorts elsewhere.
    beside = long.replace(".parquet", "")[:-1] + "a.parquet"
    after = replaced(sorted([beside, long]), [[long]], "compact")
    assert all(len(name.encode("utf-8", "surrogateescape")) <= 255 for name in after)


def test_a_directory_of_its_own_for_each_file() -> None:
    files = staged(2)
    new = in_place(
        "delete", [Replacement("d/x=1/a.parquet", files[:1]), Replacement("d/x=2/a.parquet", files[1:])], []
    )
    assert [file.destination.rpartition("/")[0] for file in new] == ["d/x=1", "d/x=2"]


def test_ids_sort_by_time() -> None:
    ids = [time_ordered_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert all(uuid.UUID(each).version == 7 and uuid.UUID(each).variant == uuid.RFC_4122 for each in ids)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: time_ordered_id(), range(1_000)))) == 1_000


def test_later_default_names_sort_after_earlier_ones() -> None:
    names = [name for _ in range(50) for name in Naming().names(2, [])]
    names += [
        file.destination.removeprefix("d/") for file in appended([StagedFile("w", "d/x"), StagedFile("v", "d/y")])
    ]
    assert names == sorted(names)
    assert all(re.fullmatch(r"part-[0-9a-f]{32}\.parquet", name) for name in names)
