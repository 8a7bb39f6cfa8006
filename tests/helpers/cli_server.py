"""Runs command lines in forks of an interpreter that has imported Parketto: real processes that start at once.

Each line on stdin is a request: arguments, files for stdin, stdout and stderr, environment, folder. Each line on
stdout is an exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any, NoReturn

import parketto.dataset  # noqa: F401 - what most commands import
from parketto.cli.app import main


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            run(request)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(request: dict[str, Any]) -> NoReturn:
    code = 70
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        for stream, path in enumerate(request["streams"]):
            opened = os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, stream)
            os.close(opened)
        sys.stdin = os.fdopen(0, "r", closefd=False)  # the old one may hold further requests
        sys.argv = ["parketto", *request["arguments"]]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
