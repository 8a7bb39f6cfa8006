"""Plots of a result, drawn in the environment of the peers, which has what it takes: `plots RESULT.json PATH`."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt


def ratios(result: dict[str, Any], path: str) -> None:
    """How much longer each peer takes than Parketto, on a logarithmic scale."""
    scale = min(row["scale"] for row in result["summary"])
    rows = [
        row
        for row in result["summary"]
        if row["scale"] == scale and row["ratio"] and not row["contestant"].startswith("parketto")
    ]
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


def growth(result: dict[str, Any], path: str) -> None:
    """Seconds and memory by scale, one panel for each job."""
    jobs = list(dict.fromkeys(row["job"] for row in result["summary"]))
    figure, grid = plt.subplots(len(jobs), 2, figsize=(9, 2.4 * len(jobs)), squeeze=False)
    for job, (left, right) in zip(jobs, grid, strict=True):
        names = dict.fromkeys(row["contestant"] for row in result["summary"] if row["job"] == job)
        for axes, key, label in ((left, "seconds", "s"), (right, "peak_mb", "MB")):
            for name in names:
                seen = {
                    row["scale"]: row[key]
                    for row in result["summary"]
                    if (row["job"], row["contestant"]) == (job, name) and row[key]
                }
                axes.plot(list(seen), list(seen.values()), marker="o", markersize=3, label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"{job}, {label}", fontsize=9)
        right.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, path)


def _save(figure: Any, path: str) -> None:
    for ending in ("svg", "png"):
        figure.savefig(f"{path}.{ending}", bbox_inches="tight", dpi=130)
    plt.close(figure)


def main() -> None:
    """Growth, if there are several scales, else ratios."""
    source, path = sys.argv[1:]
    with open(source) as file:
        result = json.load(file)
    several = len({row["scale"] for row in result["summary"]}) > 1
    (growth if several else ratios)(result, path)


if __name__ == "__main__":
    main()
