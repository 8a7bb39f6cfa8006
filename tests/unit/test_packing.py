"""Packing: limits hold, files near the target are left alone, a second run does nothing, and time is linear."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parketto import FileInfo, InvalidArgument, plan_compaction_groups
from parketto.arguments import MEGABYTE, CompactionScope, Thresholds
from parketto.planning.packing import pack
from parketto.planning.rewrite import plan_compaction

Sizes = list[tuple[int, int]]


def files(sizes: Sizes) -> list[FileInfo]:
    return [FileInfo(f"ds/{n:06d}.parquet", size, rows) for n, (size, rows) in enumerate(sizes)]


def apply(sizes: Sizes, thresholds: Thresholds) -> Sizes:
    """The sizes after the bins are rewritten, if bytes add up; new files are where their first old one was."""
    bins = {each.items[0]: each for each in pack(files(sizes), thresholds)}
    packed = {index for each in bins.values() for index in each.items}
    result = []
    for index, size in enumerate(sizes):
        if index in bins:
            each = bins[index]
            for part in range(each.outputs):
                rows = each.num_rows // each.outputs + (part < each.num_rows % each.outputs)
                result.append((each.size_bytes // each.outputs, rows))
        elif index not in packed:
            result.append(size)
    return result


# Around a target of 100: mostly files that are worth packing, some that are good, some too large.
amounts = st.one_of(st.integers(20, 74), st.integers(0, 74), st.integers(0, 250))
sizes_strategy = st.lists(st.tuples(amounts, amounts), max_size=12)
limits = st.sampled_from([None, 100, 100, 7])


@settings(max_examples=400)
@given(sizes_strategy, limits, limits)
def test_packing_is_idempotent_and_keeps_the_limits(
    sizes: Sizes, target_bytes: int | None, target_rows: int | None
) -> None:
    if target_bytes is None and target_rows is None:
        return
    thresholds = Thresholds(target_bytes, target_rows)
    bins = pack(files(sizes), thresholds)
    used = Counter(index for each in bins for index in each.items)
    assert not used or max(used.values()) == 1, "a file is in one bin only"
    for each in bins:
        rows = sum(sizes[index][1] for index in each.items)
        size = sum(sizes[index][0] for index in each.items)
        assert (rows, size) == (each.num_rows, each.size_bytes)
        oversized = [i for i in each.items if target_rows is not None and sizes[i][1] > target_rows]
        assert len(each.items) > 1 or oversized, "a single file is not rewritten"
        if target_rows is not None:
            assert -(-rows // each.outputs) <= target_rows
        if target_bytes is not None and not oversized:
            assert 10 * size <= 18 * target_bytes * each.outputs
        for index in each.items:
            weight = thresholds.weight(*sizes[index])
            assert 4 * weight < 3 * thresholds.capacity or index in oversized, (
                "files near the target are left alone"
            )
    after = sizes
    for _ in range(40):
        again = apply(after, thresholds)
        if len(again) == len(after) and not pack(files(after), thresholds):
            break
        after = again
    else:
        pytest.fail("packing does not converge")


@settings(max_examples=400)
@given(sizes_strategy)
def test_with_exact_sizes_few_rounds_are_enough(sizes: Sizes) -> None:
    thresholds = Thresholds(100, None)
    once = apply(sizes, thresholds)
    assert pack(files(apply(apply(once, thresholds), thresholds)), thresholds) == []
    light = sum(2 * size <= 100 for size, _ in once)
    assert light <= max(1, len(once) / 4), "few files are at most half full"


@settings(max_examples=400)
@given(st.lists(st.integers(1, 20), max_size=60), st.sampled_from([(100, None), (None, 100)]))
def test_small_files_are_packed_with_their_neighbours(
    sizes: list[int], targets: tuple[int | None, int | None]
) -> None:
    bins = pack(files([(size, size) for size in sizes]), Thresholds(*targets))
    assert [index for each in bins for index in each.items] == sorted(
        index for each in bins for index in each.items
    )
    assert len(apply([(size, size) for size in sizes], Thresholds(*targets))) <= max(1, sum(sizes) / 50)


def test_full_files_keep_their_places() -> None:
    """Small files on both sides of a full one are not merged across it, unless there are too many of them."""
    sizes = [40] * 4 + [90] + [40] * 4 + [90, 30, 90]
    bins = pack(files([(size, 1) for size in sizes]), Thresholds(100, None))
    assert [each.items for each in bins] == [[0, 1], [2, 3], [5, 6], [7, 8]]
    bins = pack(files([(size, 1) for size in [90, 10] * 20]), Thresholds(100, None))
    assert [len(each.items) for each in bins] == [10, 10]


def test_no_small_group_remains_at_the_end() -> None:
    by_size = plan_compaction_groups(files([(10 * MEGABYTE, 1)] * 21), target_mb_per_file=100)
    assert [len(group) for group in by_size["groups"]] == [10, 11]
    assert by_size["untouched"] == []
    by_rows = plan_compaction_groups(files([(1, 500)] * 10), target_rows_per_file=1800)
    assert by_rows["untouched"] == []
    assert by_rows["planned_stats"]["after_file_count"] == 3


def test_files_near_the_target_are_left_alone() -> None:
    good = [(75 * MEGABYTE, 1), (100 * MEGABYTE, 1), (179 * MEGABYTE, 1), (900 * MEGABYTE, 1)]
    plan = plan_compaction_groups(files(good), target_mb_per_file=100)
    assert plan["groups"] == []
    assert len(plan["untouched"]) == 4


def test_one_small_file_is_no_reason_to_rewrite_a_good_one() -> None:
    plan = plan_compaction_groups(files([(100 * MEGABYTE, 1), (MEGABYTE, 1)]), target_mb_per_file=100)
    assert plan["groups"] == []


def test_too_many_rows_are_split_and_small_files_fill_the_last_piece() -> None:
    plan = plan_compaction_groups(files([(100, 2500), (10, 400), (10, 900)]), target_rows_per_file=1000)
    assert [group.paths for group in plan["groups"]] == [["ds/000000.parquet", "ds/000001.parquet"]]
    assert plan["groups"][0].outputs == 3
    assert plan["groups"][0].max_rows == 967
    assert plan["planned_stats"]["after_file_count"] == 4


def test_both_thresholds_hold() -> None:
    plan = plan_compaction_groups(files([(30 * MEGABYTE, 10)] * 10), 100, 20)
    assert all(group.num_rows <= 20 for group in plan["groups"])
    plan = plan_compaction_groups(files([(30 * MEGABYTE, 10)] * 10), 100, 10_000)
    assert all(group.size_bytes <= 180 * MEGABYTE for group in plan["groups"])


def test_the_default_is_128_megabytes() -> None:
    plan = plan_compaction_groups(files([(60 * MEGABYTE, 1)] * 2))
    assert len(plan["groups"]) == 1
    plan = plan_compaction_groups(files([(70 * MEGABYTE, 1)] * 2))
    assert plan["groups"] == []


def test_adjacent_files_are_packed_together() -> None:
    """Files are often written in time order: packing adjacent files keeps their ranges narrow."""
    plan = plan_compaction_groups(files([(25 * MEGABYTE, 1)] * 12), target_mb_per_file=100)
    assert [group.paths[0] for group in plan["groups"]] == [f"ds/{n:06d}.parquet" for n in (0, 4, 8)]


def test_groups_stay_inside_a_directory() -> None:
    found = [FileInfo(f"ds/day={n % 3}/{n}.parquet", MEGABYTE, 1) for n in range(30)]
    plan = plan_compaction_groups(found, target_mb_per_file=100)
    assert len(plan["groups"]) == 3
    assert all(len({file.directory for file in group}) == 1 for group in plan["groups"])


def test_packing_is_not_quadratic() -> None:
    """Ten times the files take about ten times as many steps; a quadratic packing would take a hundred times."""

    def steps(count: int) -> int:
        chance = random.Random(1)
        found = files([(chance.randrange(1, 90 * MEGABYTE), chance.randrange(1, 10**6)) for _ in range(count)])
        lines = 0

        def trace(_frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal lines
            lines += event == "line"  # also for each iteration of a comprehension
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            plan_compaction_groups(found, 128, 2_000_000)
        finally:
            sys.settrace(before)
        return lines

    assert steps(5000) < 15 * steps(500)


@pytest.mark.parametrize("name", ["target_mb_per_file", "target_rows_per_file"])
@pytest.mark.parametrize("value", [0, -1, -0.5, "10", True, float("nan"), float("inf"), [1]])
def test_invalid_thresholds_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        plan_compaction_groups([], **{name: value})  # type: ignore[arg-type]


def test_target_rows_must_be_a_whole_number() -> None:
    assert plan_compaction_groups([], target_rows_per_file=1e6)["groups"] == []  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="whole number"):
        plan_compaction_groups([], target_rows_per_file=10.5)  # type: ignore[arg-type]


class TestScope:
    """Which partitions and files a compaction may rewrite, tested on plans without files."""

    @staticmethod
    def planned(
        sizes: dict[str, list[int]], scope: CompactionScope | None, target: int = 100
    ) -> dict[str, list[int]]:
        """The sizes in each directory after the plan, if bytes add up."""
        found = [
            FileInfo(f"{folder}/{number:03d}-{size}.parquet", size, size)
            for folder, each in sizes.items()
            for number, size in enumerate(each)
        ]
        plan = plan_compaction(found, Thresholds(target, None), scope=scope)
        after: dict[str, list[int]] = {folder: [] for folder in sizes}
        for file in plan.untouched:
            after[file.directory].append(file.size_bytes)
        for group in plan.groups:
            after[group.directory].append(group.size_bytes)
        assert sorted(plan.files, key=id) == sorted(found, key=id), "every file is accounted for"
        return {folder: sorted(each) for folder, each in after.items()}

    def test_default_scope_includes_all_files(self) -> None:
        assert self.planned({"a": [10, 20], "b": [5]}, None) == {"a": [30], "b": [5]}

    def test_partitions_with_too_few_files_are_left_alone(self) -> None:
        sizes = {"a": [10] * 5, "b": [10] * 4}
        assert self.planned(sizes, CompactionScope(5)) == {"a": [50], "b": [10] * 4}

    def test_a_file_of_exactly_the_limit_is_too_large(self) -> None:
        assert self.planned({"a": [19, 19, 20]}, CompactionScope(2, 20)) == {"a": [20, 38]}
        assert self.planned({"a": [19, 19, 20]}, CompactionScope(3, 20)) == {"a": [19, 19, 20]}

    def test_single_file_may_still_be_split(self) -> None:
        plan = plan_compaction([FileInfo("a/x.parquet", 10, 1000)], Thresholds(None, 300))
        assert [group.outputs for group in plan.groups] == [4]

    @settings(max_examples=300)
    @given(
        st.lists(st.lists(amounts, max_size=9), min_size=1, max_size=3),
        st.integers(1, 6),
        st.one_of(st.none(), st.integers(1, 150)),
    )
    def test_limits_hold_and_a_second_plan_is_empty(
        self, partitions: list[list[int]], least: int, limit: int | None
    ) -> None:
        scope = CompactionScope(least, limit)
        sizes = {f"p{number}": sorted(each) for number, each in enumerate(partitions)}
        after = self.planned(sizes, scope)
        for folder, before in sizes.items():
            small = [size for size in before if limit is None or size < limit]
            if len(small) < least:
                assert after[folder] == before
            kept = Counter(size for size in before if limit is not None and size >= limit)
            assert not kept - Counter(after[folder]), "files that are too large stay as they are"
            assert sum(after[folder]) == sum(before)
        assert self.planned(after, scope) == after
