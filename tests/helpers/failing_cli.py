"""The command line on a disk that fails, or in a process that dies, as soon as a commit is in the log."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Any

from parketto.cli.app import main
from parketto.storage.local import LocalStore
from parketto.storage.store import MUTATIONS

_committed = False


def _failing(name: str) -> Any:
    original = getattr(LocalStore, name)

    def call(self: LocalStore, *arguments: Any, **options: Any) -> Any:
        global _committed
        if _committed:
            if os.environ["PARKETTO_TEST_THEN"] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))
        result = original(self, *arguments, **options)
        _committed = name == "create" and "/log/" in arguments[0] and arguments[0].endswith(".json")
        return result

    return call


if __name__ == "__main__":
    for name in MUTATIONS:
        setattr(LocalStore, name, _failing(name))
    sys.argv[0] = "parketto"
    main()
