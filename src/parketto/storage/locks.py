"""Locks that a dead process cannot hold: flock, in-process locks, and leases that expire."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from parketto.errors import LockTimeout, UntrustedWorkspace

if TYPE_CHECKING:
    from parketto.storage.store import Store

try:
    import fcntl
except ImportError:  # Windows has no flock and uses leases
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

HAS_FLOCK = fcntl is not None
LEASE_SECONDS = 60.0  # after this, a lease that was not renewed expires
_POLL_SECONDS = 0.02
_READ_ATTEMPTS = 25  # after this, a lease that cannot be parsed counts as expired


class Lock(Protocol):
    """A lock that is held until it is released, or its holder dies."""

    def release(self) -> None:
        """Release the lock. Safe to call twice."""

    def is_held(self) -> bool:
        """Whether it is certain that no other holder has it."""


class NoLock:
    """A lock that excludes no one."""

    def release(self) -> None:
        """Do nothing."""

    def is_held(self) -> bool:
        """Always true: it cannot be lost."""
        return True


def wait_for(try_lock: Callable[[], Lock | None], timeout: float, path: str) -> Lock:
    """The lock, as soon as it is free; raises LockTimeout after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (lock := try_lock()) is None:
        if time.monotonic() >= deadline:
            raise LockTimeout(
                f"another process has held {path!r} for {timeout:.0f} seconds; nothing was changed. "
                "Wait for it to finish and run the operation again"
            )
        time.sleep(_POLL_SECONDS)
    return lock


def make_dirs(path: str) -> None:
    """Create a local folder, even if others remove it at the same time."""
    while True:
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if os.path.exists(path):  # a file has this name; it is not a folder that was just removed
                raise
        else:
            return


class FileLock:
    """flock on a local file. The kernel releases it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._process = os.getpid()

    @classmethod
    def attempt(cls, path: str) -> FileLock | None:
        """Take the lock now, or return None if it is held."""
        while True:
            make_dirs(os.path.dirname(path))
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                continue  # the folder was removed between the two calls
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise UntrustedWorkspace(f"{path!r} is a symbolic link; nothing was changed. Remove it") from error
            lock = cls(descriptor)  # from here on, its finalizer closes the descriptor
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.release()
                return None
            # The previous holder may have removed the file: a lock on an unlinked file excludes no one.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    return lock
            lock.release()

    def is_held(self) -> bool:
        """Whether it has not been released; the kernel never revokes it."""
        return self._descriptor is not None

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                # Closing alone would leave the lock to a forked child that inherited the descriptor. The child
                # itself must not release its parent's lock.
                if os.getpid() == self._process:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        # An interrupt may arrive between taking the lock and entering the block that releases it.
        self.release()


class ProcessLock:
    """A lock inside this process, for in-memory filesystems."""

    _held: dict[str, ProcessLock] = {}  # noqa: RUF012 - shared by all stores on purpose
    _guard = threading.Lock()

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def attempt(cls, path: str) -> ProcessLock | None:
        """Take the lock now, or return None if it is held."""
        with cls._guard:
            if path in cls._held:
                return None
            cls._held[path] = lock = cls(path)
            return lock

    def is_held(self) -> bool:
        """Whether it has not been released."""
        return self._held.get(self._path) is self

    def release(self) -> None:
        """Release the lock."""
        with self._guard:
            if self._held.get(self._path) is self:
                del self._held[self._path]


class LeaseLock:
    """A lock object in the store that its holder keeps renewing; a dead holder's lease expires.

    For filesystems without better locks. Reading it back checks that it was really taken: few filesystems support
    exclusive creation.
    """

    def __init__(self, store: Store, path: str, owner: str, seconds: float, inside: ProcessLock) -> None:
        self._store, self._path, self._owner, self._seconds = store, path, owner, seconds
        self._inside = inside
        self._stop = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="parketto-lease", daemon=True)
        self._renewal.start()

    @classmethod
    def attempt(cls, store: Store, path: str, seconds: float = LEASE_SECONDS) -> LeaseLock | None:
        """Take the lease if it is free or expired, or return None."""
        # Threads of one process compete in memory, without requests.
        inside = ProcessLock.attempt(f"{getattr(store.fs, '_fs_token', '')}:{path}")
        if inside is None:
            return None
        owner, taken = uuid.uuid4().hex, False
        try:
            taken = cls._take(store, path, owner, seconds)
            return cls(store, path, owner, seconds, inside) if taken else None
        finally:
            if not taken:
                inside.release()

    @staticmethod
    def _take(store: Store, path: str, owner: str, seconds: float) -> bool:
        try:
            store.create(path, _lease(owner, seconds))
        except FileNotFoundError:
            # The folder does not exist, or was just removed: the next attempt finds it.
            store.make_dirs(path.rpartition("/")[0])
            return False
        except FileExistsError:
            current = _read_lease(store, path)
            # A retry after a lost response finds the lease that the first request created.
            if current is None or (current["owner"] != owner and current["expires"] > time.time()):
                return False
            store.write(path, _lease(owner, seconds))
        time.sleep(_POLL_SECONDS)  # others that take it now write too; the last write wins
        current = _read_lease(store, path)
        return current is not None and current["owner"] == owner

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 4):
            try:
                if not self._is_ours():
                    return  # it expired and may have a new holder: writing now would steal it
                self._store.write(self._path, _lease(self._owner, self._seconds))
            except OSError as error:
                # The lease stays valid for three more attempts.
                logger.warning("could not renew the lease %s: %s", self._path, error)

    def is_held(self) -> bool:
        """Whether the lease in the store is still ours."""
        return not self._stop.is_set() and self._is_ours()

    def _is_ours(self) -> bool:
        current = _read_lease(self._store, self._path)
        return current is not None and current["owner"] == self._owner and current["expires"] > time.time()

    def release(self) -> None:
        """Stop renewing and remove the lease."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._renewal.join()
        try:
            if self._is_ours():
                self._store.remove(self._path)
        finally:
            self._inside.release()


def _lease(owner: str, seconds: float) -> bytes:
    return json.dumps({"owner": owner, "expires": time.time() + seconds}).encode()


def _read_lease(store: Store, path: str) -> dict[str, Any] | None:
    """The lease, or None if there is none. One that stays unreadable was left by a crash and counts as expired."""
    for _ in range(_READ_ATTEMPTS):
        try:
            lease: dict[str, Any] = json.loads(store.read(path))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            time.sleep(_POLL_SECONDS)  # its holder may be writing it right now
        else:
            return lease
    return {"owner": "", "expires": 0.0}


@contextlib.contextmanager
def held(lock: Lock) -> Iterator[None]:
    """Hold the lock for a block."""
    try:
        yield
    finally:
        lock.release()
