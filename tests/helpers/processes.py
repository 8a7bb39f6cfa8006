"""Work in a separate process, because the work may crash it."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

ENDED = "ended by Arrow"


def in_another_process(work: Callable[[], str]) -> str:
    """The result of the work, its error, or `ENDED` if its process crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            os.write(writing, work().encode()[:4000])
        except Exception as error:  # noqa: BLE001 - the test reports it
            os.write(writing, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        found = answer.read().decode()
    return ENDED if os.waitpid(child, 0)[1] else found
