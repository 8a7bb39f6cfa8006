"""Heartbeats of a running operation, on stores without locks that show that it is alive."""

from __future__ import annotations

import logging
import threading

from parketto.storage.store import Store

logger = logging.getLogger(__name__)

# Interval. Most operations end before the first heartbeat, and cost no request.
BEAT_SECONDS = 60.0


class Heartbeat:
    """Touches a file regularly, from a background thread."""

    def __init__(self, store: Store, path: str, content: bytes = b"alive\n") -> None:
        self._store, self._path, self._content = store, path, content
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="parketto-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self._store.write(self._path, self._content)
            except OSError as error:
                logger.warning("could not touch %s: %s", self._path, error)

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        self._stop.set()
        self._thread.join()
