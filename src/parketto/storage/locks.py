"""Locks that a dead process cannot hold: the kernel's, the interpreter's, or a lease that runs out."""

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
except ImportError:  # Windows has no flock; leases serve there
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

HAS_FLOCK = fcntl is not None
LEASE_SECONDS = 60.0
_POLL_SECONDS = 0.02
_READ_ATTEMPTS = 25


class Lock(Protocol):
    """A lock that is held until it is released, or its holder is gone."""

    def release(self) -> None:
        """Let the next one in. Safe to call twice."""

    def is_held(self) -> bool:
        """Whether it is certain that nobody else has it."""


class NoLock:
    """Where nobody needs to be kept out."""

    def release(self) -> None:
        """Nothing to do."""

    def is_held(self) -> bool:
        """There is nothing to lose."""
        return True


def wait_for(try_lock: Callable[[], Lock | None], timeout: float, path: str) -> Lock:
    """Try until the lock is had, or say who may be in the way."""
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
    """Make a local folder that others may be tidying away at the same time."""
    while True:
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if os.path.exists(path):  # a file is in the way, not a folder that has just gone
                raise
        else:
            return


class FileLock:
    """flock on a local file. The kernel frees it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._process = os.getpid()

    @classmethod
    def attempt(cls, path: str) -> FileLock | None:
        """Take the lock now, or return None if somebody holds it."""
        while True:
            make_dirs(os.path.dirname(path))
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                continue  # the folder was tidied away between the two calls
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise UntrustedWorkspace(f"{path!r} is a symbolic link; nothing was changed. Remove it") from error
            lock = cls(descriptor)  # from here on its end closes the descriptor, whatever happens
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.release()
                return None
            # The holder before us may have removed the file: a lock on an unlinked file excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    return lock
            lock.release()

    def is_held(self) -> bool:
        """The kernel takes it from nobody."""
        return self._descriptor is not None

    def release(self) -> None:
        """Free the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                # Closing alone would leave it to a forked child that has inherited the descriptor; and the child
                # itself must not free what is its parent's.
                if os.getpid() == self._process:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        # An interrupt may come between taking the lock and entering the block that releases it.
        self.release()


class ProcessLock:
    """A lock inside this process, for filesystems that live in its memory."""

    _held: dict[str, ProcessLock] = {}  # noqa: RUF012 - shared by all stores on purpose
    _guard = threading.Lock()

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def attempt(cls, path: str) -> ProcessLock | None:
        """Take the lock now, or return None if somebody holds it."""
        with cls._guard:
            if path in cls._held:
                return None
            cls._held[path] = lock = cls(path)
            return lock

    def is_held(self) -> bool:
        """Whether it has not been released."""
        return self._held.get(self._path) is self

    def release(self) -> None:
        """Forget the lock."""
        with self._guard:
            if self._held.get(self._path) is self:
                del self._held[self._path]


class LeaseLock:
    """A lock object in the store that its holder keeps renewing; a dead holder's lease runs out.

    For filesystems that offer nothing better. Whether it was really taken is checked by reading it back: few
    filesystems make an object only if there is none.
    """

    def __init__(self, store: Store, path: str, owner: str, seconds: float, inside: ProcessLock) -> None:
        self._store, self._path, self._owner, self._seconds = store, path, owner, seconds
        self._inside = inside
        self._stop = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="parketto-lease", daemon=True)
        self._renewal.start()

    @classmethod
    def attempt(cls, store: Store, path: str, seconds: float = LEASE_SECONDS) -> LeaseLock | None:
        """Take the lease if it is free or has run out."""
        # Threads of one process need not ask the store who is first.
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
            # There is no such folder, or it has just been tidied away: the next attempt finds it.
            store.make_dirs(path.rpartition("/")[0])
            return False
        except FileExistsError:
            current = _read_lease(store, path)
            # A request whose answer was lost is repeated, and then finds what it has made itself.
            if current is None or (current["owner"] != owner and current["expires"] > time.time()):
                return False
            store.write(path, _lease(owner, seconds))
        time.sleep(_POLL_SECONDS)  # whoever else takes it at this moment writes too; the last one has it
        current = _read_lease(store, path)
        return current is not None and current["owner"] == owner

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 4):
            try:
                if not self._is_ours():
                    return  # it ran out and somebody else has taken it: writing now would take it from them
                self._store.write(self._path, _lease(self._owner, self._seconds))
            except OSError as error:
                # The lease is good for three more attempts.
                logger.warning("could not renew the lease %s: %s", self._path, error)

    def is_held(self) -> bool:
        """Whether the lease is still ours, as the store tells."""
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
    """The lease, or None if there is none. One that stays unreadable was left by a crash: it has run out."""
    for _ in range(_READ_ATTEMPTS):
        try:
            lease: dict[str, Any] = json.loads(store.read(path))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            time.sleep(_POLL_SECONDS)  # its holder may be writing it just now
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
