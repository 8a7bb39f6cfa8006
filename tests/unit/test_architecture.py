"""Architecture rules: imports go one way, engine libraries stay in their folders, importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "parketto"
# Lower layers never import from higher ones.
LAYERS = [
    "allocator",
    "errors",
    "arguments",
    "display",
    "results",
    "storage",
    "runtime",
    "sorting",
    "parquet",
    "expressions",
    "planning",
    "tasks",
    "merge",
    "engines",
    "progress",
    "commit",
    "operations",
    "health",
    "report",
    "dataset",
    "maintenance",
    "compat",
    "streaming",
    "datasource",
    "cli",
]
# Where each library may be imported. Polars is not an engine: expressions, codecs and transformations use it.
LIBRARY_HOMES = {
    "pyspark": ["engines/spark/", "datasource/"],
    "duckdb": ["engines/duckdb/"],
    "polars": [
        "expressions/polars.py",
        "compat/transform.py",
        "parquet/codec.py",
        "parquet/decoders/",
        "parquet/encoders/",
        "operations/views.py",
    ],
    "pandas": [],
    "pydantic": ["planning/policy.py"],
    "yaml": ["maintenance/documents.py"],
    "altair": ["report/"],
    "jinja2": ["report/"],
    "vl_convert": ["report/"],
}
MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> list[str]:
    """Names of the modules imported at run time; imports under TYPE_CHECKING do not count."""
    found: list[str] = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def layer(module: str) -> int:
    return LAYERS.index(module.split(".")[1])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(SOURCE).with_suffix("")
    if relative.parts == ("__init__",):
        return
    own = layer(f"parketto.{relative.parts[0]}")
    for name in imports(path):
        if name.startswith("parketto."):
            assert layer(name) <= own, f"{relative} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_engine_libraries_stay_in_their_folders(path: Path) -> None:
    place = path.relative_to(SOURCE).as_posix()
    for name in imports(path):
        library = name.split(".")[0]
        if library in LIBRARY_HOMES:
            assert any(map(place.startswith, LIBRARY_HOMES[library])), f"{path} imports {library}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_one_module_uses_private_attributes_of_spark_columns(path: Path) -> None:
    """The internals of a Column are private to PySpark, and differ between classic Spark and Connect."""
    if path.relative_to(SOURCE).parts == ("expressions", "spark.py"):
        assert not any(name.startswith("pyspark") for name in imports(path)), (
            "this module must work without PySpark"
        )
        return
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Attribute) and node.attr in {"_jc", "_expr"})
        assert not (isinstance(node, ast.Constant) and node.value in {"_jc", "_expr"})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_have_at_most_450_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 450


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_store_touches_files(path: Path) -> None:
    """All file changes go through a store, so that the crash sweep sees them."""
    if path.parts[-2] == "storage" or path.name in {
        "spill.py",
        "spill_runs.py",
        "java.py",
        "archive.py",
        "forks.py",
    }:
        return  # spill files, the user's cache, a session's own folder: not files of a dataset
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            assert called not in {
                "os.rename",
                "os.replace",
                "os.unlink",
                "os.remove",
                "shutil.rmtree",
                "shutil.move",
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open"


ENGINES = {"pyspark", "duckdb", "polars", "pandas"}
LATER = {"sqlglot", "pydantic", "yaml", "s3fs", "typer", "rich", "IPython", "html", "statistics"}
LATER |= {"altair", "jinja2"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(ran.stdout.split())


def test_importing_loads_only_arrow() -> None:
    """`import parketto` takes as long as importing NumPy and PyArrow, which it needs."""
    loaded = loaded_by("import parketto")
    assert {name for name in loaded if name.startswith("parketto")} == {"parketto", "parketto.allocator"}
    assert not loaded & (ENGINES | LATER | {"fsspec", "asyncio", "pyarrow.parquet", "pyarrow.compute"})


def test_a_dataset_loads_no_engine_and_nothing_for_the_screen() -> None:
    loaded = loaded_by("from parketto import Dataset")
    assert not loaded & (ENGINES | LATER)
    # Each method of `Dataset` imports its own operation.
    operations = {name for name in loaded if name.startswith("parketto.operations.")}
    assert operations == {"parketto.operations.context", "parketto.operations.running"}
    assert not [name for name in loaded if name.startswith("parketto.merge")]


def test_public_names_are_sorted_and_importable() -> None:
    import parketto

    assert sorted(parketto.__all__) == parketto.__all__
    assert all(hasattr(parketto, name) for name in parketto.__all__)


def test_lazy_imports_match_the_type_checking_imports() -> None:
    """Type checkers see the same names and modules that are imported lazily."""
    import parketto

    tree = ast.parse((SOURCE / "__init__.py").read_text())
    seen = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: node.module for node in seen.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {homes.pop(name) for name in parketto._SUBMODULES} == {"parketto"}
    assert homes == parketto._HOMES
    assert sorted(homes) == parketto.__all__


def test_spark_tasks_need_no_optional_libraries() -> None:
    """Executors may have a bare copy of Parketto, without package metadata, fsspec or sqlglot."""
    rooms = ("tasks", "frames", "merging", "shuffle_write", "clustering", "reading")
    code = (
        "import importlib, pickle, sys\n"
        "sys.modules |= dict.fromkeys(('fsspec', 'sqlglot', 'duckdb', 'polars'))\n"
        f"for room in {rooms}: importlib.import_module(f'parketto.engines.spark.{{room}}')\n"
        "from parketto.storage.local import LocalStore\n"
        "print(type(pickle.loads(pickle.dumps(LocalStore()))).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split()[0] == "LocalStore"
