"""The health report: a page on its own, small, with everything escaped. `tests/browser` opens it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vl_convert

from helpers.reports import HOSTILE, hostile, shop
from parketto import Dataset
from parketto.errors import DatasetNotFound
from parketto.health import tally

MAX_BYTES = 2_000_000


class Page(HTMLParser):
    """The elements, the visible texts and the scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style" and data.strip():
            self.texts.append(data.strip())

    @property
    def charts(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, str]:
    dataset = shop(tmp_path_factory.mktemp("shop"))
    return dataset, dataset.report()


@pytest.fixture(scope="module")
def page(example: tuple[Dataset, str]) -> Page:
    return Page(example[1])


def test_the_page_shows_what_health_finds(example: tuple[Dataset, str], page: Page) -> None:
    dataset, _ = example
    health = dataset.health()
    assert {"drift", "small-files"} <= {each["name"] for each in health["problems"]}
    assert "Needs attention" in page.texts
    assert dataset.path in page.texts
    for number in (f"{health['files']['rows']:,}", f"{health['files']['count']:,}"):
        assert number in page.texts
    for each in health["problems"]:
        assert each["name"] in page.texts
        assert any(each["summary"][1:] in text for text in page.texts)
        for remedy in each["remedies"]:
            assert remedy["command"] in page.texts
            assert remedy["python"] in page.texts


def test_every_chart_compiles_and_has_a_table(page: Page) -> None:
    """Vega-Lite compiles each chart to Vega; a wrong one is an error here, not an empty box in a browser."""
    assert list(page.charts) == [
        "files",
        "partitions",
        "row-groups",
        "reads",
        "clustering",
        "schema",
        "history",
        "operations",
    ]
    for chart in page.charts.values():
        compiled = vl_convert.vegalite_to_vega(chart, "6.4")
        assert compiled["marks"]
        assert "config" not in chart, "colours belong to the page"
    assert page.count("table") == page.count("details") == len(page.charts)


def test_charts_contain_the_numbers_of_health(example: tuple[Dataset, str], page: Page) -> None:
    health = example[0].health()
    values = {name: _values(chart) for name, chart in page.charts.items()}
    assert sum(each.get("count", 0) for each in values["files"]) == health["files"]["count"]
    assert sum(each.get("count", 0) for each in values["row-groups"]) == health["row_groups"]["count"]
    now = {each["column"]: each["now"] for each in values["reads"]}
    assert now == {each["column"]: each["range"] for each in health["columns"]}
    folders = [each["folder"] for each in values["partitions"] if "folder" in each]
    assert folders == [each["folder"] for each in health["partitions"]["largest"]]
    assert {each["column"] for each in values["schema"]} == {"amount", "coupon"}
    assert len(values["history"]) == health["history"]["commits"]
    before = {each["name"]: (each["before"], each["after"]) for each in values["operations"] if "when" not in each}
    assert [name.split()[1] for name in before] == ["optimize", "delete", "compact"]
    assert list(before.values())[2] == (8, 4)
    assert len(values["clustering"]) == health["row_groups"]["count"]


def _values(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of a chart and of its layers."""
    own = [*chart.get("datasets", {}).values(), chart.get("data", {}).get("values", [])]
    return [each for values in own for each in values] + [
        each for layer in chart.get("layer", ()) for each in _values(layer)
    ]


def test_the_page_needs_no_network_and_runs_only_its_own_scripts(example: tuple[Dataset, str], page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), f"<{tag} {name}={attributes[name]!r}>"
        assert not [name for name in attributes if name.startswith("on")]
    (policy,) = (
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in page.scripts[1:]
    }
    (allowed,) = re.findall(r"script-src ([^;]*)", policy)
    assert set(allowed.split()) == hashes
    assert len(example[1].encode()) < MAX_BYTES


def test_names_are_data(tmp_path: Path) -> None:
    dataset = hostile(tmp_path)
    text = dataset.report()
    page = Page(text)
    assert page.count("script") == 3
    assert page.count("img") == page.count("b") == page.count("i") == 0
    assert "49" not in page.texts, "no template in a name is evaluated"
    for name in HOSTILE:
        assert any(name in each for each in page.texts), name
    assert f"parketto compact '{dataset.path}'" in page.texts
    assert any("<script>.parquet" in each for each in page.texts)
    # Data between script tags cannot end the element.
    assert "<" not in page.scripts[0]
    for chart in page.charts.values():
        assert vl_convert.vegalite_to_vega(chart, "6.4")["marks"]


def test_a_report_is_written_to_a_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset(tmp_path / "events", engine="pyarrow")
    dataset.write(pa.table({"a": [1]}))
    monkeypatch.chdir(tmp_path)
    page = dataset.report("report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    assert dataset.report(tmp_path / "report.html").startswith("<!doctype html>")
    dataset.report("memory://report-test/report.html")
    assert fsspec.filesystem("memory").exists("/report-test/report.html")
    assert sorted(os.listdir(tmp_path)) == [".events.parketto", "events", "report.html"]


def test_nothing_is_written_if_there_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        Dataset(tmp_path / "none", engine="pyarrow").report(tmp_path / "report.html")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rows", [0, 1])
def test_tiny_datasets_have_a_report(tmp_path: Path, rows: int) -> None:
    pq.write_table(pa.table({"n": pa.array([1] * rows, pa.int64())}), tmp_path / "a.parquet")
    page = Page(Dataset(tmp_path, engine="pyarrow").report())
    assert "Nothing to do" in page.texts
    assert {"partitions", "history", "operations", "schema"}.isdisjoint(page.charts)


def test_no_text_of_the_data_is_in_the_page(tmp_path: Path) -> None:
    """The page can be mailed, and bounds are values of single rows."""
    dataset = Dataset(tmp_path / "users", engine="pyarrow")
    for number in range(4):
        users = [f"user{number}{n}@example.org" for n in range(50)]
        dataset.write(pa.table({"mail": users, "key": [each.encode() for each in users], "n": range(50)}))
    dataset.optimize(["mail", "n"], target_rows_per_file=50)
    text = dataset.report()
    page = Page(text)
    assert "Clustering: mail and n" in page.texts
    assert "100 %" in page.texts
    assert "example.org" not in text
    dataset.delete("mail = 'user01@example.org'")
    assert "example.org" not in dataset.report()


def test_a_dataset_of_damaged_files_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    page = Page(Dataset(tmp_path, engine="pyarrow").report())
    assert "Damaged" in page.texts
    assert page.charts == {}


@pytest.mark.parametrize("library", ["altair", "jinja2", "vl_convert"])
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, library: str) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from parketto import Dataset, EngineUnavailable\n"
        f"dataset = Dataset({str(tmp_path)!r}, engine='pyarrow')\n"
        "try: dataset.report()\n"
        "except EngineUnavailable as error: print(error)\n"
        "print(dataset.health()['verdict'])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 'pip install "parketto[report]"' in found
    assert found.endswith("healthy\n"), "health needs none of them"


def test_a_sample_of_row_groups_gives_almost_the_same_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(5)
    for number in range(200):
        values = {"id": np.arange(number * 100, number * 100 + 120), "user": chance.integers(0, 1000, 120)}
        pq.write_table(pa.table(values), tmp_path / f"{number:03}.parquet")
    dataset = Dataset(tmp_path, engine="pyarrow")
    whole = dataset.health()
    monkeypatch.setattr(tally.Sample.__init__, "__defaults__", (60,))
    part = dataset.health()
    assert (whole["sampled"], part["sampled"]) == (1.0, 0.25)
    assert part["files"] == whole["files"]
    for one, other in zip(whole["columns"], part["columns"], strict=True):
        assert other["range"] == pytest.approx(one["range"], abs=0.04)
        assert other["depth"] == pytest.approx(one["depth"], rel=0.25, abs=4)


@pytest.mark.sweep
def test_a_hundred_thousand_files_give_a_small_page_in_bounded_memory(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    root = tmp_path / "events"
    for number in range(1000):
        values = {
            "id": np.arange(number * 50, number * 50 + 50),
            "user": chance.integers(0, 10**6, 50),
            "name": [f"n{n}" for n in chance.integers(0, 10**6, 50)],
        }
        pq.write_table(pa.table(values), tmp_path / f"{number}.parquet")
    for number in range(100_000):
        folder = root / f"day={number // 20}"
        if number % 20 == 0:
            folder.mkdir(parents=True)
        os.link(tmp_path / f"{number % 1000}.parquet", folder / f"{number}.parquet")
    code = (
        "import resource; from parketto import Dataset\n"
        f"dataset = Dataset({str(root)!r}, engine='pyarrow')\n"
        "assert dataset.health()['files']['count'] == 100_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
        "print(len(dataset.report().encode()))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    megabytes, size = map(int, found.split())
    assert megabytes < 600
    assert size < MAX_BYTES
