"""Compare a run with the baseline: has Parketto become slower beside its peers?

Only ratios count, Parketto to a peer in one and the same run: seconds are those of a machine. A ratio may fall to
(1 - tolerance) of the baseline's. Runs that take less than the floor, on either side, are shown and do not count;
with fewer than three rounds on either side nothing does, because one disturbance is enough to move a ratio.
The exit code is 0 if all is well, 1 if a ratio fell too far, 2 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from harness import report

BASELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "baseline.json")
TOLERANCE = 0.4
FLOOR_SECONDS = 0.15
LEAST_ROUNDS = 3
KEPT = ("job", "scale", "contestant", "against", "ratio", "seconds", "outcome")
HEADINGS = ("work", "contestant", "baseline", "now", "change", "verdict")


def main() -> int:
    """Compare, or write a new baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", help="what run.py --json wrote")
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"{TOLERANCE} by default")
    parser.add_argument("--floor", type=float, default=FLOOR_SECONDS, help=f"{FLOOR_SECONDS} s by default")
    parser.add_argument("--write", action="store_true", help="make the result the new baseline")
    arguments = parser.parse_args()
    with open(arguments.result) as file:
        result = json.load(file)
    if arguments.write:
        with open(arguments.baseline, "w") as file:
            json.dump(as_baseline(result), file, indent=1)
            file.write("\n")
        return 0
    with open(arguments.baseline) as file:
        baseline = json.load(file)
    if baseline["base_rows"] != result["base_rows"]:
        print(f"not comparable: {result['base_rows']:,} rows, the baseline has {baseline['base_rows']:,}")
        return 2
    lines = compare(baseline, result, arguments.tolerance, arguments.floor)
    report.print_table(f"ratios, tolerance {arguments.tolerance:.0%}", HEADINGS, [line[:6] for line in lines])
    if min(baseline["rounds"], result["rounds"]) < LEAST_ROUNDS:
        print(f"information only: {result['rounds']} rounds, the baseline has {baseline['rounds']}")
        return 2
    counted = [line[5] for line in lines if line[5] in ("ok", "SLOWER")]
    if not counted:
        print("nothing to compare")
        return 2
    return int("SLOWER" in counted)


def as_baseline(result: Mapping[str, Any]) -> dict[str, Any]:
    """What of a result is worth keeping in the repository."""
    rows = [{key: row[key] for key in KEPT} for row in result["summary"]]
    return {key: result[key] for key in ("machine", "base_rows", "rounds")} | {"summary": rows}


def compare(
    baseline: Mapping[str, Any], result: Mapping[str, Any], tolerance: float, floor: float
) -> list[tuple[str, ...]]:
    """A line for each ratio that both have."""
    before, now = _ratios(baseline), _ratios(result)
    found = []
    for key in before.keys() & now.keys():
        old, new = before[key], now[key]
        fast = min(old["shortest"], new["shortest"]) < floor
        slower = new["ratio"] < old["ratio"] * (1 - tolerance)
        verdict = "too fast to count" if fast else "SLOWER" if slower else "ok"
        job, scale, name, _ = key
        change = new["ratio"] / old["ratio"] - 1
        found.append(
            (f"{job} {scale}x", name, f"{old['ratio']:.2f}x", f"{new['ratio']:.2f}x", f"{change:+.0%}", verdict)
        )
    return sorted(found)


def _ratios(result: Mapping[str, Any]) -> dict[tuple[str, int, str, str], dict[str, float]]:
    """The ratios of peers, and the shorter of the two times behind each."""
    return {
        (row["job"], row["scale"], row["contestant"], row["against"]): {
            "ratio": row["ratio"],
            "shortest": min(row["seconds"], row["seconds"] / row["ratio"]),
        }
        for row in result["summary"]
        if row["ratio"] and row["outcome"] == "ok" and not row["contestant"].startswith("parketto")
    }


if __name__ == "__main__":
    sys.exit(main())
