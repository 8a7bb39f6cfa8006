"""What must work right after `pip install parketto`, without extras. Run by `make release-check`."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import parketto

# Libraries of extras: modules that import them cannot be imported without them.
EXTRAS = {"botocore", "duckdb", "pydantic", "pyspark", "s3fs", "yaml"}


def import_all() -> None:
    """Import all modules, except those that need an extra."""
    for module in pkgutil.walk_packages(parketto.__path__, "parketto.", onerror=lambda _name: None):
        if module.name == "parketto.cli.__main__":
            continue  # it runs when it is imported
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if str(error.name).split(".")[0] not in EXTRAS:
                raise
        except parketto.EngineUnavailable:
            pass  # the message says which extra


def main() -> None:
    """Import everything, and use the main operations."""
    assert "site-packages" in parketto.__file__, f"not the installed package: {parketto.__file__}"
    assert importlib.metadata.version("parketto") == parketto.__version__
    assert importlib.resources.files("parketto").joinpath("py.typed").is_file()
    import_all()
    command = Path(sys.executable).with_name("parketto")
    assert "Usage" in subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        events = parketto.Dataset(Path(folder, "events"), engine="pyarrow")
        for day in range(3):
            events.write(pa.table({"day": [day] * 2, "hits": [1, 2]}))
        assert events.compact(progress=True)["after_file_count"] == 1
        assert json.loads(json.dumps(events.delete("hits = 2")))["rows_matched"] == 3
        assert events.check(deep=True)["healthy"]
        assert events.read().num_rows == 3
    print(f"parketto {parketto.__version__} works")


if __name__ == "__main__":
    main()
