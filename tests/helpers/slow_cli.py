"""The command line with slow compactions, so that tests can watch and interrupt them."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

import parketto.tasks.rewrite
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.tasks.rewrite import RewriteGroup


@dataclass(frozen=True)
class SlowGroup(RewriteGroup):
    """Ends a while after it has written its files, unless it is cancelled. Spark's workers import it by name."""

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        staged = super().run(worker)
        until = time.monotonic() + float(os.environ.get("PARKETTO_TEST_SECONDS", "0.4"))
        while time.monotonic() < until:
            worker.check_cancelled()
            time.sleep(0.05)
        return staged


if __name__ == "__main__":
    from helpers.slow_cli import SlowGroup as Importable
    from parketto.cli.app import main

    parketto.tasks.rewrite.RewriteGroup = Importable
    if os.environ["PARKETTO_ENGINE"] == "spark":
        import parketto.engines.spark.engine

        parketto.engines.spark.engine.RewriteGroup = Importable
    sys.argv[0] = "parketto"
    main()
