"""Tasks may borrow another allocator of Arrow's; whoever set one must find it again afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from parketto.kernels.memory import TaskMemory


def test_the_allocator_is_lent_for_as_long_as_anybody_works(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_choice_by_arrows_own_variable_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    before = pa.default_memory_pool().backend_name

    with TaskMemory():
        assert pa.default_memory_pool().backend_name == before


def test_a_choice_that_is_made_meanwhile_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    before = pa.default_memory_pool()
    try:
        with TaskMemory():
            pa.set_memory_pool(pa.system_memory_pool())
        assert pa.default_memory_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Arrow's own choice stands")
@pytest.mark.parametrize(
    ("first", "chosen", "expected"),
    [
        ("import parketto", None, "jemalloc"),
        ("import parketto", "system", "system"),
        ("import pyarrow; before = pyarrow.default_memory_pool().backend_name; import parketto", None, "before"),
    ],
)
def test_whoever_loads_arrow_first_chooses(first: str, chosen: str | None, expected: str) -> None:
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
