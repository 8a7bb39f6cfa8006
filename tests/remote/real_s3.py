"""Runs the tests with the marker `s3` against versitygw, an S3 server over a folder: `make test-s3` calls this.

Arguments: the program, then those of pytest.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOGIN = ("parketto-tests", "parketto-tests-secret")


def main(program: str, arguments: list[str]) -> int:
    """Start the server, run the tests, stop the server; returns the exit code of the tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="parketto-s3-") as folder:
        for name in ("objects", "attributes"):
            Path(folder, name).mkdir()
        log = Path(folder, "server.log")
        # Metadata of objects goes into sidecar files: not every disk has extended attributes.
        command = [program, "--access", LOGIN[0], "--secret", LOGIN[1], "--port", f"127.0.0.1:{port}"]
        command += ["posix", "--sidecar", f"{folder}/attributes", f"{folder}/objects"]
        with log.open("wb") as sink:
            server = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            if not answers(port, server):
                print(f"{program} does not answer:\n{log.read_text()}", file=sys.stderr)
                return 1
            found = {
                "PARKETTO_S3_ENDPOINT": f"http://127.0.0.1:{port}",
                "PARKETTO_S3_KEY": LOGIN[0],
                "PARKETTO_S3_SECRET": LOGIN[1],
            }
            return subprocess.call(
                [sys.executable, "-m", "pytest", "-m", "s3", *arguments], env=os.environ | found
            )
        finally:
            server.terminate()
            server.wait()


def answers(port: int, server: subprocess.Popen[bytes], seconds: float = 30) -> bool:
    """Wait for the server; returns whether it answers in time."""
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
