"""The ratios that Parketto must reach against its peers, and whether a run has met them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.work import ALONE, INDEXED, JOBS, LOCAL

SPARK = ("parketto/spark",)


@dataclass(frozen=True)
class Target:
    """How Parketto must compare with a peer in a job.

    Attributes:
        job: The name of the job.
        peer: The contestant to compare with, or one for each of `ours`; None: only memory and growth count.
        least: How many times as long as Parketto the peer must take.
        most: Instead of `least`: how many times as long as the peer Parketto may take.
        ours: Parketto's contestants; each is judged on its own.
        scale: The size of the data, as a multiple of the base.
        peak_mb: The peak memory that Parketto may use, including the interpreter and its libraries.
        most_growth: How many times as long, per file, the job may take at `scale` as at its first scale.
    """

    job: str
    peer: str | tuple[str, ...] | None
    least: float | None = None
    most: float | None = None
    ours: tuple[str, ...] = LOCAL
    scale: int = 1
    peak_mb: float | None = None
    most_growth: float | None = None

    def pairs(self) -> Iterator[tuple[str, str | None]]:
        """Each of Parketto's contestants with its peer."""
        for number, name in enumerate(self.ours):
            yield name, self.peer[number] if isinstance(self.peer, tuple) else self.peer

    @property
    def contestants(self) -> frozenset[str]:
        """The contestants that must take part."""
        return frozenset(name for pair in self.pairs() for name in pair if name)

    @property
    def said(self) -> str:
        """The text of the target in the table."""
        parts = []
        if self.least is not None:
            parts.append(f"{self.least:g}x")
        if self.most is not None:
            parts.append(f"at most {self.most:g}x")
        if self.most_growth is not None:
            parts.append(f"linear (at most {self.most_growth:g}x)")
        if self.peak_mb is not None:
            parts.append(f"{self.peak_mb:,.0f} MB")
        return ", ".join(parts)


TARGETS: tuple[Target, ...] = (
    Target("upsert-scattered", "delta", 1.8),
    Target("upsert-scattered", "polars", 0.85),
    Target("upsert-medium", "delta", 1.8),
    Target("upsert-medium", "polars", 0.85),
    Target("delete-scattered", "delta", 2.5),
    Target("delete-scattered", "polars", 0.85),
    Target("delete-medium", "delta", 2.5),
    Target("delete-medium", "polars", 0.85),
    Target("upsert-large", "delta", 1.3),
    Target("upsert-large", "spark", 3, ours=SPARK),
    *(Target("small-upsert", "duckdb", 0.8, scale=scale) for scale in JOBS["small-upsert"].scales),
    Target("repartition", "polars", 0.8, peak_mb=512),
    Target("repartition", "spark", 5, ours=SPARK),
    Target("cluster", "polars", 0.85, peak_mb=512),
    Target("cluster", "delta", 2.5),
    Target("cluster-text", "delta", 1.2),
    Target("delete-narrow", "delta", 1.2, ours=(*LOCAL, *INDEXED)),
    Target("small-delete", "delta", 0.8, ours=(*LOCAL, *INDEXED), scale=16),
    Target("delete-day", ALONE, most=2, peak_mb=200),
    Target("delete-many-days", ALONE, most=2, peak_mb=200),
    Target("plan", None, ours=("parketto/pyarrow",), scale=100, peak_mb=1024, most_growth=1.5),
    Target("compact-healthy", "duckdb", 5.4),
    Target("compact-healthy", "delta", 9),
    Target("compact-healthy", "spark", 13, ours=SPARK),
    Target("import", "numpy and pyarrow", most=1.3, ours=("parketto/pyarrow",)),
)
HEADINGS = ("work", "Parketto", "seconds", "peak MB", "peer", "peer's seconds", "ratio", "target", "verdict")
MISSED = "missed"


def needed(job: str) -> frozenset[str]:
    """The contestants that the targets of a job need; empty if it has no target."""
    return frozenset().union(*(target.contestants for target in TARGETS if target.job == job))


def judged(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every target for each of Parketto's contestants: the ratio, and `met`, `missed` or why neither."""
    found = {(row["job"], row["scale"], row["contestant"]): row for row in rows}
    return [_judge(target, ours, peer, found) for target in TARGETS for ours, peer in target.pairs()]


def _judge(
    target: Target, ours: str, peer: str | None, rows: Mapping[tuple[str, int, str], Mapping[str, Any]]
) -> dict[str, Any]:
    mine = rows.get((target.job, target.scale, ours))
    other = rows.get((target.job, target.scale, peer)) if peer else None
    verdict: dict[str, Any] = {
        "job": target.job,
        "scale": target.scale,
        "contestant": ours,
        "peer": peer,
        "target": target.said,
        "seconds": mine["seconds"] if mine else None,
        "peak_mb": mine["peak_mb"] if mine else None,
        "peer_seconds": other["seconds"] if other else None,
        "ratio": None,
    }
    bad = [row for row in (mine, other) if row and row["outcome"] != "ok"]
    if bad:
        return verdict | {"verdict": f"{bad[0]['contestant']}: {bad[0]['outcome']}"}
    if mine is None or (peer and other is None):
        return verdict | {"verdict": "not measured"}
    misses = []
    if other is not None:
        # The ratio that the target limits: the peer's time by Parketto's for `least`, the inverse for `most`.
        ratio = verdict["ratio"] = (
            other["seconds"] / mine["seconds"] if target.most is None else mine["seconds"] / other["seconds"]
        )
        if (target.least is not None and ratio < target.least) or (
            target.most is not None and ratio > target.most
        ):
            misses.append("time")
    if target.most_growth is not None:
        first = min(scale for job, scale, name in rows if (job, name) == (target.job, ours))
        start = rows[target.job, first, ours]
        verdict["ratio"] = mine["seconds"] / start["seconds"] / (target.scale / first)
        if verdict["ratio"] > target.most_growth:
            misses.append("growth")
    if target.peak_mb is not None and mine["peak_mb"] > target.peak_mb:
        misses.append("memory")
    return verdict | {"verdict": f"{MISSED}: {', '.join(misses)}" if misses else "met"}


def lines(verdicts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of the table; a job's name is only in its first row."""
    found: list[list[str]] = []
    seen: tuple[str, int] | None = None
    for row in verdicts:
        job = (row["job"], row["scale"])
        title = JOBS[row["job"]].title + (f", {row['scale']}x" if len(JOBS[row["job"]].scales) > 1 else "")
        found.append(
            [
                "" if job == seen else title,
                row["contestant"],
                *(_number(row[key], form) for key, form in (("seconds", ".2f"), ("peak_mb", ",.0f"))),
                row["peer"] or "",
                _number(row["peer_seconds"], ".2f"),
                _number(row["ratio"], ".2f", "x"),
                row["target"],
                row["verdict"],
            ]
        )
        seen = job
    return found


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
