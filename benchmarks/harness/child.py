"""What runs in a contestant's own process: prepare, warm up, and then the work with a clock and a look at memory.

Memory is what the kernel remembers as each process's peak, forgotten just before the work begins, so that neither
imports nor the warm-up count unless they are still there. With Spark there are three kinds of processes: this one,
the JVM, and the Python workers; the sum of their peaks is an upper bound of the peak of the sum.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import importlib
import json
import os
import pstats
import sys
import time
from collections.abc import Iterator
from typing import Any

from harness.request import Request


def main() -> None:
    """Do what the specification says, and write beside it what was seen."""
    specification, output = sys.argv[1:]
    with open(specification) as file:
        spec = json.load(file)
    contestant = importlib.import_module(f"harness.contestants.{spec['module']}")
    request, warm = Request.of(spec["request"]), Request.of(spec["warm"])
    operation = contestant.OPERATIONS[request.operation]
    operation(warm, contestant.prepare(warm))
    prepared = contestant.prepare(request)
    counts = getattr(contestant, "counts", lambda _: {})
    before = counts(prepared)
    gc.collect()
    forget_peaks()
    with _profiled(spec.get("profile")):
        start, used = time.perf_counter(), cpu_seconds()
        said = operation(request, prepared)
        seconds, used = time.perf_counter() - start, cpu_seconds() - used
    found: dict[str, Any] = {"seconds": seconds, "cpu_seconds": used, **peaks()}
    found |= {name: count - before[name] for name, count in counts(prepared).items()}
    found |= said or {}  # some measure themselves
    getattr(contestant, "check", lambda *_: None)(request, prepared)
    if hasattr(contestant, "result_files"):
        found["result_files"] = contestant.result_files(request, prepared)
    with open(output, "w") as file:
        json.dump(found, file)


def family() -> dict[int, str]:
    """This process and all below it, with the names of their programs."""
    parents, names = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{entry}/stat") as stat:
            name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
            names[int(entry)], parents[int(entry)] = name, int(rest.split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid in names}


def cpu_seconds() -> float:
    """Processor time of all of them so far: what other programs do meanwhile hardly changes it."""
    used = 0
    for pid in family():
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat") as stat:
            used += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:15]))
    return used / os.sysconf("SC_CLK_TCK")


def forget_peaks() -> None:
    """Let peaks begin anew, where the kernel allows it."""
    for pid in family():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")


def peaks() -> dict[str, float]:
    """The peaks since then, in MB."""
    found = {"python_mb": 0.0, "jvm_mb": 0.0, "workers_mb": 0.0}
    for pid, name in family().items():
        kind = "python_mb" if pid == os.getpid() else "jvm_mb" if name == "java" else "workers_mb"
        with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status") as status:
            found[kind] += next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    return {**found, "peak_mb": sum(found.values())}


@contextlib.contextmanager
def _profiled(path: str | None) -> Iterator[None]:
    """With a path: write there where this process spends its time."""
    if path is None:
        yield
        return
    profile = cProfile.Profile()
    with profile:
        yield
    with open(path, "w") as out:
        pstats.Stats(profile, stream=out).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
