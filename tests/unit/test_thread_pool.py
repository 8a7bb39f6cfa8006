"""Threads of a pool never outlive its `with` block, even if Ctrl-C arrives while one is being started."""

from __future__ import annotations

import threading
import time

import pytest

from parketto.runtime.threads import ThreadPool


@pytest.fixture
def ctrl_c_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C right after a thread was started: Python's executor has not registered the thread yet."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("pool-of-test"):
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)


@pytest.mark.usefixtures("ctrl_c_at_start")
def test_leaving_the_block_waits_for_running_work() -> None:
    begun = threading.Event()
    done = []

    def work() -> None:
        begun.set()
        time.sleep(0.3)
        done.append(1)

    def block() -> None:
        with ThreadPool(2, "pool-of-test") as pool:
            try:
                pool.submit(work)
            except KeyboardInterrupt:
                assert begun.wait(10)  # otherwise there is nothing to wait for
                raise

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]


@pytest.mark.usefixtures("ctrl_c_at_start")
def test_no_work_starts_after_the_block_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unregistered thread already has a work item, but starts it later."""
    done = []
    late = threading.Event()
    do = ThreadPool._do

    def delayed(pool: ThreadPool, *arguments: object) -> object:
        late.wait(10)
        return do(pool, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ThreadPool, "_do", delayed)
    with pytest.raises(KeyboardInterrupt), ThreadPool(2, "pool-of-test") as pool:
        pool.submit(done.append, 1)
    late.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pool-of-test"):
            thread.join(10)
    assert done == []


def test_futures_return_results() -> None:
    with ThreadPool(2, "pool-of-test") as pool:
        futures = [pool.submit(pow, n, 2) for n in range(5)]
    assert [future.result() for future in futures] == [0, 1, 4, 9, 16]


def test_stopped_pool_does_not_start_queued_work() -> None:
    done = []
    gate = threading.Event()
    with ThreadPool(1, "pool-of-test") as pool:
        pool.submit(gate.wait, 10)
        for n in range(5):
            pool.submit(done.append, n)
        pool.stop()
        gate.set()
    assert done == []
