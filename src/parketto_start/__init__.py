"""Starts the command `parketto`. It is outside the package, whose import is most of what a short command does."""

import os
import signal
from typing import NoReturn


def main() -> None:
    """Run the command line. Ctrl-C while modules are imported ends it with exit code 130, and without a word."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in some scripts
    if is_default:
        signal.signal(signal.SIGINT, _end)
    from parketto.cli.app import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(*_: object) -> NoReturn:
    os._exit(130)
