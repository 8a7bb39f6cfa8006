"""Clustering plans: which files are worth rewriting by columns, and together with which others.

Files that are already clustered stay. New ones are rewritten together with those that they overlap, if queries
benefit; so the work depends on what has changed, not on the size of the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from parketto.arguments import Thresholds, check_names
from parketto.errors import InvalidArgument, quoted
from parketto.parquet.bounds import typed_bounds
from parketto.parquet.clustering_metadata import LINEAR, RECORD, Clustering
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.planning.boxes import Boxes
from parketto.planning.rewrite import FileGroup, RewritePlan, cells, rewrite_plan
from parketto.planning.skipping import RANGE, Floats, column_reads
from parketto.results import ColumnReads
from parketto.sorting.curves import CURVES, KEY_BITS
from parketto.sorting.ranks import Weighted

Curve = Literal["hilbert", "zorder", "linear"]
CURVE_NAMES = (*CURVES, LINEAR)
DEFAULT_CURVE: Curve = "hilbert"

# Rows per row group of a clustered file: enough row groups to skip most of them, and no more. DuckDB on four
# million rows, in row groups of 16, 64 and 256 thousand: 14.5, 14.9 and 19.2 ms for a range, 8.6, 5.8 and 9.6 ms
# for a small box, 336, 271 and 245 ms for everything.
ROW_GROUP_ROWS = 64 * 1024
_SMALL_ROW_GROUP_ROWS = 16 * 1024  # lower limit for small datasets, to have many row groups
_MANY_ROW_GROUPS = 64  # the number of row groups that small datasets aim for
_MIN_ROW_GROUP_ROWS = 1024  # lower limit if target_bytes asks for smaller row groups
_ROW_GROUPS_PER_FILE = 8  # minimum in files cut by target_bytes, so that they end near the target
_FILL = 0.87  # average fill of files limited by rows, because they end where squares of the curve end

# Measured reads relative to the ideal of n ** (-1/d), on uniform data.
_CURVE_FACTORS = {"hilbert": 1.1, "zorder": 1.25}
_MIN_GAIN = 0.1  # files are rewritten only if queries then read at least this share less
_MAX_REQUIRED_GAIN = 0.5  # the required gain if almost nothing of the rewrite is new
_MIN_NEW_SHARE = 0.2  # below this new share of the rewrite, the required gain rises
_MIN_WEIGHT = 1 / 16  # minimum cost of reading a row group, as a share of a full one
_TOO_LARGE = 1.8  # files larger than this multiple of target_bytes are split
_WIDE = 0.5  # files whose row groups span more than this share of every column, on average, are wide
_MANY_SMALL = 0.25  # small files are merged once they are more than this share of the files


def check_clustering(columns: Sequence[str], curve: str = DEFAULT_CURVE) -> Clustering:
    """The validated columns and curve. With one column every curve is linear.

    >>> check_clustering(["user", "day"], "zorder")
    Clustering(columns=('user', 'day'), curve='zorder')
    >>> check_clustering(["user"]).curve
    'linear'
    """
    names = check_names("columns", columns)
    if curve not in CURVE_NAMES:
        raise InvalidArgument(f"unknown curve {curve!r}; valid curves: {quoted(CURVE_NAMES)}")
    if curve != LINEAR and len(names) > KEY_BITS:
        raise InvalidArgument(
            f"cannot cluster along a curve by {len(names)} columns: at most {KEY_BITS} are supported"
        )
    return Clustering(names, curve if len(names) > 1 else LINEAR)


def plan_clustering(
    files: Sequence[FileInfo], clustering: Clustering, thresholds: Thresholds, compression: str | None = None
) -> RewritePlan:
    """Plan to cluster the rows of each cell; files that are clustered already, by their footers, stay."""
    groups: list[FileGroup] = []
    choose = _linear_groups if clustering.is_linear else _curve_groups
    kept: list[str] = []
    # One record for all groups of this run: small files are merged only once several runs have left some.
    record = clustering.record()
    for cell in cells(files, by_layout=False):
        chosen, reason = choose(cell, clustering, thresholds)
        position = {file.path: at for at, file in enumerate(cell)} if chosen else {}
        for found in chosen:
            together = sorted(found, key=lambda file: position[file.path])
            group = _group(together, clustering, thresholds, compression, record)
            if not clustering.is_linear and len(together) < len(cell):
                paths = set(group.paths)
                others = [file for file in cell if file.path not in paths]
                group = replace(group, surroundings=_surroundings(others, clustering.columns))
            groups.append(group)
        if reason:
            kept.append(reason)
    plan = rewrite_plan("optimize", files, groups, clustering, compression)
    return replace(
        plan,
        reads={column: _reads(plan, column, clustering) for column in clustering.columns},
        unchanged_because=None if groups or not kept else kept[0],
    )


def _group(
    files: Sequence[FileInfo],
    clustering: Clustering,
    thresholds: Thresholds,
    compression: str | None,
    record: bytes,
) -> FileGroup:
    rows, size = sum(file.num_rows for file in files), sum(file.size_bytes for file in files)
    even, full = _even_rows(rows, clustering, thresholds), _full_row_group(files, clustering, thresholds)
    max_rows = None
    if thresholds.target_rows is not None and rows > thresholds.target_rows:
        max_rows = even if clustering.is_linear else thresholds.target_rows
    return FileGroup(
        files=tuple(files),
        outputs=max(thresholds.files_needed(size, rows), -(-rows // max(1, even))),
        max_rows=max_rows,
        roll_bytes=thresholds.target_bytes,
        compression=compression,
        row_group_rows=full,
        record=record,
    )


def _even_rows(rows: int, clustering: Clustering, thresholds: Thresholds) -> int:
    """The target number of rows per file, if limited."""
    if thresholds.target_rows is None or rows <= thresholds.target_rows:
        return rows
    fill = 1.0 if clustering.is_linear else _FILL
    limit = max(1, int(thresholds.target_rows * fill))
    return max(1, -(-rows // max(1, -(-rows // limit))))


def _full_row_group(files: Sequence[FileInfo], clustering: Clustering, thresholds: Thresholds) -> int:
    rows, size = sum(file.num_rows for file in files), sum(file.size_bytes for file in files)
    return row_group_rows(rows, size, _even_rows(rows, clustering, thresholds), thresholds.target_bytes)


def _surroundings(files: Sequence[FileInfo], columns: Sequence[str]) -> tuple[Weighted | None, ...]:
    """The bounds of row groups that stay; each bound represents half of the rows."""
    groups = [group for file in files for group in file.row_groups if group.num_rows]
    found: list[Weighted | None] = []
    for column in columns:
        stats = [(group.columns.get(column), group.num_rows / 2) for group in groups]
        known = [(each, rows) for each, rows in stats if each is not None and each.min is not None]
        values = typed_bounds(files[0], column, [bound for each, _ in known for bound in each[:2]])
        weights = np.repeat(np.array([rows for _, rows in known], float), 2)
        found.append(None if values is None or not len(values) else Weighted(values, weights))
    return tuple(found)


def row_group_rows(rows: int, size_bytes: int, file_rows: int, target_bytes: int | None) -> int:
    """The target number of rows per row group of clustered files.

    >>> row_group_rows(10_000_000, 10**9, 10_000_000, None), row_group_rows(1000, 10**4, 334, None)
    (65360, 334)
    """
    wanted = max(_SMALL_ROW_GROUP_ROWS, min(ROW_GROUP_ROWS, rows // _MANY_ROW_GROUPS))
    if target_bytes is not None and rows:
        by_bytes = target_bytes / _ROW_GROUPS_PER_FILE / max(1.0, size_bytes / rows)
        wanted = min(wanted, max(_MIN_ROW_GROUP_ROWS, int(by_bytes)))
    pieces = max(1, -(-file_rows // wanted))
    return max(1, -(-file_rows // pieces))


@dataclass(frozen=True)
class _Gain:
    """What queries read of some files, now and after a rewrite."""

    now: float
    then: float
    #: The new share of what would be rewritten.
    new_share: float

    @property
    def is_minimal(self) -> bool:
        # A few new rows among very many others must justify rewriting all of them.
        wanted = max(_MIN_GAIN, _MAX_REQUIRED_GAIN * (1 - self.new_share / _MIN_NEW_SHARE))
        return self.then > self.now * (1 - wanted)

    def __str__(self) -> str:
        return (
            f"already laid out: a range of 1 % reads {self.now:.1%} of the data, and would read about "
            f"{self.then:.1%} after a rewrite"
        )


def _curve_groups(
    cell: Sequence[FileInfo], clustering: Clustering, thresholds: Thresholds
) -> tuple[list[list[FileInfo]], str | None]:
    """Groups of unclustered files and those that they overlap; or why a rewrite is not worth it."""
    ill_sized = _ill_sized(cell, clustering, thresholds)
    candidates = ill_sized | {file.path for file in cell if file.num_rows and file.clustering != clustering}
    rowless = [file for file in cell if not file.num_rows]
    if not candidates:
        return [rowless] if len(rowless) > 1 else [], "already laid out by these columns"
    boxes = Boxes(cell, clustering.columns)
    wide = _wide(boxes, candidates)
    chosen, reason = set[str](), None
    # Wide files may not be worth a rewrite while others are, or only both together are.
    parts = [part for part in (wide, candidates - wide) if part]
    for part in (*parts, candidates) if len(parts) > 1 else parts:
        if chosen and part == candidates:
            continue
        gain = _gain(boxes, *boxes.meeting(part), boxes.of(candidates), clustering, thresholds)
        if part & ill_sized or not gain.is_minimal:
            chosen |= part
        else:
            reason = str(gain)
    groups = []
    if chosen:
        new, overlapped = boxes.meeting(chosen)
        # Files without rows overlap nothing; they are removed along with the rest.
        groups.append([*overlapped, *new, *(file for file in rowless if file not in overlapped)])
        # The overlapped files may include other unclustered ones.
        chosen |= {file.path for file in overlapped}
    # Small files that are not worth clustering are at least merged with each other.
    remaining = [file for file in cell if file.path in candidates - chosen and _is_small(file, thresholds)]
    if len(remaining) > 1:
        groups.append(remaining if chosen else [*remaining, *rowless])
    return groups, None if groups else reason


def _wide(boxes: Boxes, paths: set[str]) -> set[str]:
    """The files whose row groups span most of every column."""
    narrowest: dict[str, list[float]] = {path: [] for path in paths}
    shares = np.min([found.point for found in boxes.spans.values()], axis=0)
    for path, share in zip(boxes.paths, shares.tolist(), strict=True):
        if path in narrowest:
            narrowest[path].append(share)
    return {path for path, found in narrowest.items() if found and sum(found) > _WIDE * len(found)}


def _ill_sized(cell: Sequence[FileInfo], clustering: Clustering, thresholds: Thresholds) -> set[str]:
    """The files that are too large, and the small files of several runs once there are many.

    A few small files do no harm here; compaction merges them.
    """
    large, small = set(), {}
    for file in filter(lambda each: each.num_rows, cell):
        too_large = thresholds.target_bytes is not None and file.size_bytes > _TOO_LARGE * thresholds.target_bytes
        if (too_large and _can_be_cut(file, clustering, thresholds)) or _too_many_rows([file], thresholds):
            large.add(file.path)
        elif file.clustering == clustering and _is_small(file, thresholds):
            small[file.path] = (file.metadata or {}).get(RECORD)
    many = len(small) > _MANY_SMALL * len(cell) and len(set(small.values())) > 1
    return large | small.keys() if many else large


def _can_be_cut(file: FileInfo, clustering: Clustering, thresholds: Thresholds) -> bool:
    """Whether a rewrite would split a file: files end between buckets, and few or equal rows make only one."""
    if file.num_rows <= _full_row_group([file], clustering, thresholds):
        return False
    known = [file.column_stats(column) for column in clustering.columns]
    return any(
        stats.null_count != file.num_rows
        and (stats.min is None or stats.min != stats.max or stats.null_count != 0)
        for stats in known
    )


def _is_small(file: FileInfo, thresholds: Thresholds) -> bool:
    return 2 * _weight(file, thresholds) <= thresholds.capacity


def _weight(file: FileInfo, thresholds: Thresholds) -> int:
    return thresholds.weight(file.size_bytes, file.num_rows)


def _too_many_rows(files: Sequence[FileInfo], thresholds: Thresholds) -> bool:
    return thresholds.target_rows is not None and any(file.num_rows > thresholds.target_rows for file in files)


def _gain(
    boxes: Boxes,
    new: Sequence[FileInfo],
    overlapped: Sequence[FileInfo],
    is_candidate: npt.NDArray[np.bool_],
    clustering: Clustering,
    thresholds: Thresholds,
) -> _Gain:
    """The share of rows that a range of 1 % reads, averaged over the columns, before and after."""
    is_new = boxes.of({file.path for file in new})
    old = boxes.of({file.path for file in overlapped})
    inside = is_new | old
    rows = sum(file.num_rows for file in boxes.files)
    full = _full_row_group(boxes.files, clustering, thresholds)
    weights = np.array([max(group.num_rows, full * _MIN_WEIGHT) for group in boxes.groups], float)
    new_weight = max(sum(file.num_rows for file in new), full * _MIN_WEIGHT)
    now, then = [], []
    for found in boxes.spans.values():
        read = found.range
        ideal = expected_range(clustering, rows / full)
        clustered = read[~is_candidate]
        if len(clustered):
            ideal = min(1.0, max(ideal, float(clustered.mean())))
        now.append(_mean(read[inside], weights[inside]))
        then.append((read[old] @ weights[old] + ideal * new_weight) / max(1.0, weights[inside].sum()))
    new_share = new_weight / max(1.0, weights[inside].sum())
    return _Gain(float(np.mean(now)), float(min(np.mean(now), np.mean(then))), float(min(1.0, new_share)))


def _mean(values: Floats, weights: Floats) -> float:
    return float(values @ weights / weights.sum()) if len(values) else 0.0


def expected_range(clustering: Clustering, row_groups: float, position: int = 0) -> float:
    """The share of row groups that a range of 1 % of one of the columns reads, for uniform values.

    >>> round(expected_range(Clustering(("a", "b"), "hilbert"), 64), 3)
    0.148
    """
    return min(1.0, _expected_point(clustering, row_groups, position) + RANGE)


def _expected_point(clustering: Clustering, row_groups: float, position: int = 0) -> float:
    count = max(1.0, row_groups)
    if clustering.is_linear:
        return 1 / count if position == 0 else 1.0
    return min(1.0, _CURVE_FACTORS[clustering.curve] * float(count ** (-1 / len(clustering.columns))))


def _reads(plan: RewritePlan, column: str, clustering: Clustering) -> tuple[ColumnReads, ColumnReads]:
    """What queries on a column read before, and approximately after."""
    before = file_reads(plan.files, column)
    if not plan.groups:
        return before, before
    stays = [group for file in plan.untouched for group in file.row_groups]
    known = column_reads(stays, column)
    point, ranged, count, depth = known["point"] * len(stays), known["range"] * len(stays), len(stays), 0
    position = clustering.columns.index(column)
    for group in plan.groups:
        pieces = -(-group.num_rows // (group.row_group_rows or ROW_GROUP_ROWS)) or 1
        point += pieces * min(before["point"], _expected_point(clustering, pieces, position))
        ranged += pieces * min(before["range"], expected_range(clustering, pieces, position))
        depth += max(1, round(pieces * _expected_point(clustering, pieces, position)))
        count += pieces
    after = ColumnReads(point=point / count, range=ranged / count, depth=max(known["depth"], depth))
    return before, after


def file_reads(files: Sequence[FileInfo], column: str) -> ColumnReads:
    """What queries on a column read of files."""
    return column_reads(list(chain.from_iterable(file.row_groups for file in files)), column)


def _linear_groups(
    cell: Sequence[FileInfo], clustering: Clustering, thresholds: Thresholds
) -> tuple[list[list[FileInfo]], str | None]:
    """Groups of adjacent files in the first column that are unsorted or too small; or why there are none."""
    columns = clustering.columns
    unsorted = {file.path for file in cell if not _declares(file, columns)}
    if _too_many_rows(cell, thresholds):
        return [list(cell)], None
    stats = {file.path: file.column_stats(columns[0]) for file in cell}
    bounded = [file for file in cell if stats[file.path].min is not None]
    if any(file.path in unsorted for file in cell if stats[file.path].min is None):
        return [list(cell)], None  # the position of its rows is unknown
    ordered = sorted(bounded, key=lambda file: (stats[file.path].min, stats[file.path].max, file.path))
    ordered += [file for file in cell if stats[file.path].min is None]
    wrong = [file.path in unsorted or _overlapping(file.row_groups, columns[0]) for file in ordered]
    highest = 0
    for at, file in enumerate(ordered[: len(bounded)]):
        if at and stats[file.path].min < stats[ordered[highest].path].max:
            wrong[highest] = wrong[at] = True  # files in between overlap the same one
        if not at or stats[file.path].max >= stats[ordered[highest].path].max:
            highest = at
    for at in _too_small(ordered, thresholds):
        wrong[at : at + 2] = [True, True]
    runs: list[list[FileInfo]] = []
    for at, (file, is_wrong) in enumerate(zip(ordered, wrong, strict=True)):
        if is_wrong and at and wrong[at - 1]:
            runs[-1].append(file)
        elif is_wrong:
            runs.append([file])
    return runs, None if runs else "already sorted by these columns"


def _declares(file: FileInfo, columns: tuple[str, ...]) -> bool:
    return all(group.sorted_by[: len(columns)] == columns for group in file.row_groups if group.num_rows)


def _too_small(ordered: Sequence[FileInfo], thresholds: Thresholds) -> list[int]:
    """Where adjacent files would fit into one; a single small rest after a larger file may stay."""
    weights = [_weight(file, thresholds) for file in ordered]
    fitting = [at for at, pair in enumerate(pairwise(weights)) if sum(pair) <= thresholds.capacity]
    largest = [max(weights[at], weights[at + 1]) for at in fitting]
    return fitting if len(fitting) > 1 or any(2 * weight <= thresholds.capacity for weight in largest) else []


def _overlapping(groups: Sequence[RowGroupInfo], column: str) -> bool:
    bounds = []
    for group in groups:
        stats = group.columns.get(column)
        if not group.num_rows or (stats is not None and stats.null_count == group.num_rows):
            continue  # only NULLs, which sort last
        if stats is None or stats.min is None:
            return False
        bounds.append((stats.min, stats.max))
    bounds.sort()
    return any(low < high for (_, high), (low, _) in pairwise(bounds))
