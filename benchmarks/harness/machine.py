"""On what a run was made: numbers of different machines are not to be compared, and versions matter."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

from harness import peers
from harness.contestants import PEERS

OWN_LIBRARIES = ("parketto", "pyspark", "duckdb", "pyarrow", "polars")
PEER_LIBRARIES = ("deltalake", "fsspeckit")


def about(with_peers: bool) -> dict[str, Any]:
    """Cores, memory and versions."""
    versions = {name: _version(name) for name in OWN_LIBRARIES}
    if with_peers:
        code = "import importlib.metadata as m, sys\nfor name in sys.argv[1:]: print(name, m.version(name))"
        done = subprocess.run(
            [peers.python_of(PEERS), "-c", code, *PEER_LIBRARIES], capture_output=True, text=True, check=False
        )
        versions.update(line.split() for line in done.stdout.splitlines())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
