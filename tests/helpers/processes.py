"""Work in a process of its own, because the work may end it."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

ENDED = "ended by Arrow"


def in_another_process(work: Callable[[], str]) -> str:
    """What the work returns, its error, or that its process came to an end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            os.write(writing, work().encode()[:4000])
        except Exception as error:  # noqa: BLE001 - the test tells of it
            os.write(writing, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        found = answer.read().decode()
    return ENDED if os.waitpid(child, 0)[1] else found
