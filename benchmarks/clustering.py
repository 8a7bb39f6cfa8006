"""What clustering is worth: how much queries must still read, what it costs, and how fast queries are.

For data of several kinds and 2, 3 and 4 columns, each layout is made in a process of its own. Footers tell the
share of row groups and files that a query must read: for a value or one percent of the rows by one of the columns,
and for a box on all of them. With n row groups, n^(-1/d) is what a perfect layout leaves of evenly spread data for
a query on one of d columns. The cost is given beside a plain sort on the same engine, and beside delta-rs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from harness import boxes, data, machine, peers, points, queries, report, skipping
from harness.checks import Reader
from harness.contestants import OWN, PEERS, PEERS_OLD, Contestant, has_argument
from harness.measure import Setting, in_process
from harness.request import Request
from run import DOCUMENT

CURVES = ("linear", "zorder", "hilbert")
ONLY_CLUSTER = frozenset({"cluster"})
IMAGE = os.path.join(peers.PROJECT, "docs", "images", "clustering.svg")
AS_WRITTEN = "as written"
PLAIN_SORTS = {"duckdb": "duckdb sort", "spark": "spark sort"}
QUERY_KINDS = ("range", "box")
HEADINGS = (
    "data",
    "layout",
    "seconds",
    "of sort",
    "of delta",
    "groups",
    "n^(-1/d)",
    "point",
    "range",
    "box",
    "files: point",
    "range",
    "box",
    "DuckDB ms: range",
    "box",
    "Spark ms: range",
    "box",
)


@dataclass
class Case:
    """Data of one kind, and what is asked of every layout of it."""

    kind: str
    dimensions: int
    source: str
    table: pa.Table
    request: Request
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """What it is clustered by."""
        return points.COLUMNS[: self.dimensions]


def main() -> int:
    """Measure all layouts of all data; the exit code says whether all rows were right."""
    arguments = parse(sys.argv[1:])
    started = time.perf_counter()
    known = [contestant for contestant in layouts(arguments.engines) if is_available(contestant)]
    rows: list[dict[str, Any]] = []
    drawing: dict[str, list[boxes.Box]] = {}
    with contextlib.ExitStack() as stack:
        if arguments.work is None:
            arguments.work = stack.enter_context(tempfile.TemporaryDirectory(prefix="parketto-clustering-"))
        os.makedirs(arguments.work, exist_ok=True)
        for dimensions in arguments.dimensions:
            for kind in arguments.kinds:
                with made(kind, dimensions, arguments) as case:
                    measure(case, known, arguments)
                    rows += case.rows
                    if (kind, dimensions) == ("uniform", 2):
                        drawing = drawn(case)
    result = {
        "machine": machine.about(PEERS in {contestant.environment for contestant in known}),
        "rows": arguments.rows,
        "groups": arguments.groups,
        "summary": rows,
    }
    tell(result, drawing, arguments)
    print(f"{time.perf_counter() - started:.0f} s in all", file=sys.stderr)
    return int(any(row["outcome"] == "WRONG" or (row["ours"] and row["outcome"] != "ok") for row in rows))


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The arguments; a quick run only changes their defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data, two kinds, DuckDB only")
    parser.add_argument("--kinds", nargs="+", choices=points.KINDS, metavar="KIND", help=", ".join(points.KINDS))
    parser.add_argument("--dimensions", nargs="+", type=int, choices=(2, 3, 4), help="2 3 4 by default")
    parser.add_argument("--engines", nargs="+", choices=PLAIN_SORTS, help="duckdb and spark by default")
    parser.add_argument("--rows", type=int, help="8,192 for each row group by default, in a quick run 2,048")
    parser.add_argument("--groups", type=int, help="how many row groups, one in each file; 256, in a quick run 64")
    parser.add_argument("--predicates", type=int, default=200, help="how many of each kind")
    parser.add_argument("--queries", type=int, default=10, help="how many of them are really run")
    parser.add_argument("--rounds", type=int, default=3, help="how often they are run")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a run counts as failed")
    parser.add_argument("--work", help="a folder for data; by default a temporary one")
    parser.add_argument("--json", metavar="PATH", help="write all numbers there")
    parser.add_argument("--docs", action="store_true", help="put table and drawing into docs/")
    arguments = parser.parse_args(given)
    quick = arguments.quick
    arguments.kinds = arguments.kinds or (["uniform", "strings"] if quick else list(points.KINDS))
    arguments.dimensions = arguments.dimensions or ([2] if quick else [2, 3, 4])
    arguments.engines = arguments.engines or (["duckdb"] if quick else list(PLAIN_SORTS))
    arguments.groups = arguments.groups or (64 if quick else 256)
    # A multiple of what DuckDB's writer counts in, so that all layouts have row groups of one size.
    arguments.rows = arguments.rows or arguments.groups * (2_048 if quick else 8_192)
    return arguments


def layouts(engines: Sequence[str]) -> list[Contestant]:
    """Who makes layouts; without curves, Parketto has one layout only."""
    found = []
    for engine in engines:
        found.append(Contestant(PLAIN_SORTS[engine], engine, ONLY_CLUSTER, ""))
        curves = CURVES if has_argument("optimize", "curve") else (None,)
        for curve in curves:
            options = {"engine": engine, **({"curve": curve} if curve else {})}
            name = f"parketto/{engine} {curve or ''}".strip()
            found.append(Contestant(name, "parketto", ONLY_CLUSTER, PLAIN_SORTS[engine], OWN, options))
    found.append(Contestant("delta z-order", "delta", ONLY_CLUSTER, "", PEERS))
    found.append(Contestant("fsspeckit 0.5", "fsspeckit_old", ONLY_CLUSTER, "", PEERS_OLD))
    return found


def is_available(contestant: Contestant) -> bool:
    """Whether its environment can be made."""
    try:
        peers.python_of(contestant.environment)
    except RuntimeError as problem:
        print(f"without {contestant.name}: {problem}", file=sys.stderr)
        return False
    return True


@contextlib.contextmanager
def made(kind: str, dimensions: int, arguments: argparse.Namespace) -> Iterator[Case]:
    """The data, while it is needed."""
    with tempfile.TemporaryDirectory(dir=arguments.work, ignore_cleanup_errors=True) as folder:
        source = os.path.join(folder, "source")
        # As many files as there shall be row groups, so that "as written" is comparable.
        table = points.write(kind, dimensions, source, arguments.rows, arguments.groups)
        limit = -(-arguments.rows // arguments.groups)
        columns = points.COLUMNS[:dimensions]
        request = Request("cluster", source, rows=arguments.rows, columns=columns, target_rows=limit)
        yield Case(kind, dimensions, source, table, request)


def measure(case: Case, known: Sequence[Contestant], arguments: argparse.Namespace) -> None:
    """All layouts of one dataset."""
    folder = os.path.dirname(case.source)
    setting = Setting(folder, timeout=arguments.timeout)
    warm_root = os.path.join(folder, "warm")
    points.write(case.kind, case.dimensions, warm_root, 2_000, 4)
    warm = Request("cluster", warm_root, rows=2_000, columns=case.columns, target_rows=500)
    files = data.parquet_files(case.source)
    reader = Reader(files)
    expected = reader.digest(files)
    asked = skipping.predicates(case.table, case.columns, arguments.predicates)
    real = {kind: asked[kind][: arguments.queries] for kind in QUERY_KINDS}

    def look(name: str, found: list[str], seconds: float | None, ours: bool) -> None:
        outcome = "ok" if reader.digest(found) == expected else "WRONG"
        row = {"kind": case.kind, "dimensions": case.dimensions, "layout": name, "ours": ours}
        row |= {"outcome": outcome, "seconds": seconds, **quality(found, case, asked)}
        row["duckdb_ms"] = queries.with_duckdb(found, real, arguments.rounds)
        case.rows.append(row)
        case.kept[name] = found
        said = f"{seconds:.2f} s, " if seconds is not None else ""
        print(f"{case.kind} {case.dimensions}: {name}: {said}range {row['groups_range']:.1%}", file=sys.stderr)

    look(AS_WRITTEN, files, None, False)
    for contestant in known:
        with setting.run(contestant, case.request, warm) as (said, root, _):
            if "error" in said:
                case.rows.append(
                    {
                        "kind": case.kind,
                        "dimensions": case.dimensions,
                        "layout": contestant.name,
                        "ours": contestant.is_parketto,
                        "outcome": "FAILED",
                        "error": said["error"],
                    }
                )
                print(f"{case.kind} {case.dimensions}: {contestant.name}: {said['error']}", file=sys.stderr)
                continue
            live = [os.path.relpath(path, root) for path in said.get("result_files") or data.parquet_files(root)]
            place = os.path.join(folder, f"kept-{len(case.kept)}")
            shutil.copytree(root, place, copy_function=os.link)
            found = [os.path.join(place, path) for path in live]
            look(contestant.name, found, said["seconds"], contestant.is_parketto)
    compare_costs(case, known)
    if "spark" in arguments.engines:
        spec = {"layouts": case.kept, "asked": real, "rounds": arguments.rounds}
        spoken = in_process(OWN, "harness.queries", spec, folder, arguments.timeout)
        for row in case.rows:
            row["spark_ms"] = spoken.get(row["layout"])


def quality(files: Sequence[str], case: Case, asked: dict[str, list[skipping.Predicate]]) -> dict[str, Any]:
    """What the footers tell."""
    groups = skipping.row_groups(files, case.columns)
    found: dict[str, Any] = {"groups": len(groups), "ideal": len(groups) ** (-1 / case.dimensions)}
    for kind, chosen in asked.items():
        found[f"groups_{kind}"], found[f"files_{kind}"] = skipping.shares(groups, chosen)
    return found


def compare_costs(case: Case, known: Sequence[Contestant]) -> None:
    """Seconds beside a plain sort of the same engine, and beside delta-rs."""
    seconds = {row["layout"]: row.get("seconds") for row in case.rows}
    against = {contestant.name: contestant.against for contestant in known}
    for row in case.rows:
        sort, delta = seconds.get(against.get(row["layout"], "")), seconds.get("delta z-order")
        mine = row.get("seconds")
        row["of_sort"] = mine / sort if mine and sort else None
        row["of_delta"] = mine / delta if mine and delta else None


def drawn(case: Case) -> dict[str, list[boxes.Box]]:
    """The rectangles of the layouts that are worth a look."""
    found = {}
    for name, files in case.kept.items():
        if name in (PLAIN_SORTS["duckdb"], "delta z-order") or name.startswith("parketto/duckdb"):
            groups = skipping.row_groups(files, case.columns)
            found[name] = [(group.bounds["a"], group.bounds["b"]) for group in groups]
    return found


def tell(result: dict[str, Any], drawing: dict[str, list[boxes.Box]], arguments: argparse.Namespace) -> None:
    """The table, and whatever files were asked for."""
    cells = lines(result["summary"])
    title = f"{result['rows']:,} rows; the share of row groups and files that a query must read"
    report.print_table(title, HEADINGS, cells)
    for row in result["summary"]:
        if row["outcome"] != "ok":
            print(f"{row['outcome']}: {row['layout']}, {row['kind']}: {row.get('error', 'other rows')}")
    if arguments.json:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump({**result, "drawing": drawing}, file, indent=1)
    if arguments.docs:
        with open(DOCUMENT) as file:
            text = file.read()
        about = f"{result['rows']:,} rows on {result['machine']['cores']} cores."
        content = f"{about}\n\n{report.markdown(HEADINGS, cells)}"
        with open(DOCUMENT, "w") as file:
            file.write(report.replace_section(text, "clustering", content))
        if drawing:
            os.makedirs(os.path.dirname(IMAGE), exist_ok=True)
            with open(IMAGE, "w") as file:
                file.write(boxes.draw(picked(drawing)))


def picked(drawing: dict[str, list[boxes.Box]]) -> dict[str, list[boxes.Box]]:
    """Linear, z-order and Hilbert of Parketto; until it has them, who else has something of the kind."""
    curves = {curve: drawing.get(f"parketto/duckdb {curve}") for curve in CURVES}
    if all(curves.values()):
        return {name: found for name, found in curves.items() if found}
    return {name: found for name, found in drawing.items() if not name.startswith("parketto")}


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The cells of the table."""
    found, seen = [], ""
    for row in rows:
        title = f"{row['kind']}, {row['dimensions']} columns"
        cells = ["" if title == seen else title, row["layout"]]
        seen = title
        if row["outcome"] == "FAILED":
            found.append([*cells, "FAILED", *[""] * (len(HEADINGS) - 3)])
            continue
        wrong = " WRONG" if row["outcome"] == "WRONG" else ""
        cells.append((f"{row['seconds']:.2f}" if row["seconds"] is not None else "") + wrong)
        cells += [f"{row[key]:.2f}x" if row[key] else "" for key in ("of_sort", "of_delta")]
        cells += [f"{row['groups']:,}", f"{row['ideal']:.1%}"]
        cells += [
            f"{row[f'{unit}_{kind}']:.1%}" for unit in ("groups", "files") for kind in ("point", "range", "box")
        ]
        for key in ("duckdb_ms", "spark_ms"):
            cells += [f"{row[key][kind]:.1f}" if row.get(key) else "" for kind in QUERY_KINDS]
        found.append(cells)
    return found


if __name__ == "__main__":
    sys.exit(main())
