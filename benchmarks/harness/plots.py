"""Plots of a result: `plots FOLDER < SUMMARY`. It runs in the peers' environment, which has Matplotlib."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

Rows = list[dict[str, Any]]


def ratios(rows: Rows, path: str) -> None:
    """How many times as long as Parketto each peer takes, on a logarithmic scale."""
    rows = [row for row in rows if row["ratio"] and not row["contestant"].startswith("parketto")]
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    names = sorted({row["contestant"] for row in rows})
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(jobs) + 1.6))
    for name in names:
        chosen = [row for row in rows if row["contestant"] == name]
        axes.scatter(
            [row["ratio"] for row in chosen], [jobs.index(row["job"]) for row in chosen], label=name, s=28
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(jobs)), jobs)
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer ÷ time of Parketto (right of the line, Parketto is faster)")
    axes.grid(axis="both", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    _save(figure, path)


def growth(rows: Rows, path: str) -> None:
    """Seconds and memory by scale, one panel for each job."""
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    figure, grid = plt.subplots(len(jobs), 2, figsize=(9, 2.4 * len(jobs)), squeeze=False)
    for job, (left, right) in zip(jobs, grid, strict=True):
        names = dict.fromkeys(row["contestant"] for row in rows if row["job"] == job)
        for axes, key, label in ((left, "seconds", "s"), (right, "peak_mb", "MB")):
            for name in names:
                seen = {
                    row["scale"]: row[key]
                    for row in rows
                    if (row["job"], row["contestant"]) == (job, name) and row[key]
                }
                axes.plot(list(seen), list(seen.values()), marker="o", markersize=3, label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"{job}, {label}", fontsize=9)
        right.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, path)


def _save(figure: Any, path: str) -> None:
    figure.savefig(f"{path}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw the growth of the jobs that were measured at several scales, and the ratios of the others."""
    [folder] = sys.argv[1:]
    rows: Rows = json.load(sys.stdin)
    os.makedirs(folder, exist_ok=True)
    scales = {job: {row["scale"] for row in rows if row["job"] == job} for job in (row["job"] for row in rows)}
    for draw, several in ((ratios, False), (growth, True)):
        chosen = [row for row in rows if (len(scales[row["job"]]) > 1) == several]
        if chosen:
            draw(chosen, os.path.join(folder, "growth" if several else "operations"))


if __name__ == "__main__":
    main()
