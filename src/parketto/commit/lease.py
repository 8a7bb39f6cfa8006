"""Leases: staging folders that outlive the process that opened them.

A write may be planned, staged and committed by different processes, so no lock shows that it is alive. A file in
the staging folder does: while it was touched within the last 15 minutes, no other process removes the folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from parketto.commit.heartbeat import BEAT_SECONDS, Heartbeat
from parketto.commit.recovery import new_id
from parketto.commit.workspace import LEASE, Workspace
from parketto.storage.locks import held
from parketto.storage.store import Store


@dataclass(frozen=True)
class Lease:
    """A staging folder for a write in several processes.

    Args:
        id: The id of the transaction that commits it.
        directory: The folder.
        application: Of all writes of one application, only the last one continues.
    """

    id: str
    directory: str
    application: str = ""

    @classmethod
    def open(cls, workspace: Workspace, application: str = "") -> Lease:
        """Open a staging folder. Folders that the same application has left behind are removed."""
        if application:
            _remove_earlier(workspace, application)
        identity = new_id()
        # The lock comes first: without it, another process would remove a folder that has no lease yet.
        directory, alive = workspace.begin(identity)
        with held(alive):
            lease = cls(identity, directory, application)
            workspace.store.make_dirs(f"{directory}/new")
            workspace.store.write(lease._path, lease._content)
        return lease

    @property
    def _path(self) -> str:
        return f"{self.directory}/{LEASE}"

    @property
    def _content(self) -> bytes:
        return f"{self.application}\n".encode()

    @contextlib.contextmanager
    def kept_alive(self, store: Store) -> Iterator[None]:
        """Renew the lease now, if needed, and regularly while rows are staged."""
        found = store.stat(self._path)
        if found is None or found.modified is None or found.modified < time.time() - BEAT_SECONDS:
            with contextlib.suppress(FileNotFoundError):  # another task has just done it
                store.write(self._path, self._content)
        beat = Heartbeat(store, self._path, self._content)
        try:
            yield
        finally:
            beat.stop()

    def end(self, store: Store) -> None:
        """End the lease: from now on, the transaction that has adopted the folder shows that it is alive."""
        store.remove(self._path)


def _remove_earlier(workspace: Workspace, application: str) -> None:
    """Remove the staged files of earlier writes of an application, which have ended without a commit."""
    for name in workspace.transactions():
        directory = f"{workspace.path}/{name}"
        with contextlib.suppress(FileNotFoundError):
            if workspace.store.read(f"{directory}/{LEASE}") == f"{application}\n".encode():
                workspace.store.remove_tree(directory)
