"""Tasks may switch to another allocator of Arrow; afterwards the previous one is restored."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from parketto.runtime.memory import TaskMemory


def test_allocator_is_switched_until_the_last_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if "jemalloc" not in pa.supported_memory_backends():
        pytest.skip("Arrow was built without it")
    before = pa.default_memory_pool()
    memory = TaskMemory()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with memory:
            with memory:
                assert pa.default_memory_pool().backend_name == "jemalloc"
            assert pa.default_memory_pool().backend_name == "jemalloc"
        assert pa.default_memory_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)


def test_allocator_chosen_by_environment_variable_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    before = pa.default_memory_pool().backend_name

    with TaskMemory():
        assert pa.default_memory_pool().backend_name == before


def test_allocator_chosen_during_a_task_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    before = pa.default_memory_pool()
    try:
        with TaskMemory():
            pa.set_memory_pool(pa.system_memory_pool())
        assert pa.default_memory_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems Arrow chooses the allocator")
@pytest.mark.parametrize(
    ("first", "chosen", "expected"),
    [
        ("import parketto", None, "jemalloc"),
        ("import parketto", "system", "system"),
        ("import pyarrow; before = pyarrow.default_memory_pool().backend_name; import parketto", None, "before"),
    ],
)
def test_allocator_is_chosen_only_if_arrow_is_not_loaded_yet(
    first: str, chosen: str | None, expected: str
) -> None:
    if "jemalloc" not in pa.supported_memory_backends():
        pytest.skip("Arrow was built without it")
    variable = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {name: value for name, value in os.environ.items() if name != variable}
    if chosen is not None:
        environment[variable] = chosen
    code = f"""
before = None
{first}
import os, pyarrow
print(pyarrow.default_memory_pool().backend_name, before, os.environ.get("{variable}"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    name, before, left = done.stdout.split()

    assert name == (before if expected == "before" else expected)
    assert left == str(chosen)
    assert not done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report the used address space")
@pytest.mark.parametrize(
    ("room_mb", "output"),
    [(400, "1 False True 1 1"), (20, "OutOfMemory the limit of")],
)
def test_address_space_limit_is_respected(room_mb: int, output: str) -> None:
    """With little memory a task uses one thread and small row groups; with too little it raises OutOfMemory."""
    code = (
        "import resource, pyarrow as pa\n"
        "from parketto.errors import OutOfMemory\n"
        "from parketto.runtime.address_space import address_space_used\n"
        "from parketto.runtime.task import Staging, Worker\n"
        "from parketto.storage.local import LocalStore\n"
        f"limit = address_space_used() + ({room_mb} << 20)\n"
        "before = pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    with Worker(LocalStore(), Staging(''), 1 << 30, threads=4, any_thread=True) as worker:\n"
        "        thrifty = pa.default_memory_pool().backend_name != 'jemalloc'\n"
        "        print(worker.threads, worker.any_thread, thrifty, pa.cpu_count(), pa.io_thread_count())\n"
        f"        assert worker.row_group_bytes <= ({room_mb} << 20) // 8\n"
        "except OutOfMemory as error:\n"
        "    print(type(error).__name__, error)\n"
        "assert before == (pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.startswith(output)
