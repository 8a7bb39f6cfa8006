"""A driver of its own: works on a dataset with tasks that take their time, so that somebody can interfere."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from parketto import Dataset
from parketto.engines.base import Context, GroupResult
from parketto.engines.spark.engine import SparkEngine
from parketto.kernels.rewrite import RewriteGroup
from parketto.kernels.work import StagedFile, Worker
from parketto.plan.rewrite import RewritePlan

sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class SlowRewrite(RewriteGroup):
    """Leaves word that it has begun, and is done only a while after its files are written."""

    marks: str = ""

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        staged = super().run(worker)
        with open(os.path.join(self.marks, f"{os.getpid()}-{time.time_ns()}"), "w") as mark:
            mark.write(self.group.directory)
        time.sleep(1.5)
        return staged


class SlowSpark(SparkEngine):
    """Spark, with tasks that take their time."""

    marks = ""

    def rewrite(self, plan: RewritePlan, context: Context) -> list[GroupResult]:
        print("working", flush=True)
        tasks = [SlowRewrite(group, plan.operation, plan.clustering, self.marks) for group in plan.groups]
        return [GroupResult(g, s) for g, s in zip(plan.groups, self.run(tasks, context), strict=True)]


def make(root: str) -> None:
    for day in range(8):
        os.makedirs(f"{root}/day={day}")
        for part in range(5):
            first = (day * 5 + part) * 100
            pq.write_table(pa.table({"id": range(first, first + 100)}), f"{root}/day={day}/{part}.parquet")


def main(how: str, root: str) -> None:
    make(root)
    marks = os.path.join(os.path.dirname(os.path.dirname(root)), "marks")
    os.makedirs(marks)
    engine = SlowSpark()
    engine.marks = marks
    dataset = Dataset(root, engine=engine)
    engine.session.sparkContext.addPyFile(__file__)
    engine.session.range(1).count()  # executors are there
    if how == "slowly":
        dataset.compact()
        if len(os.listdir(marks)) > 8:
            print("tried again")
        return
    try:
        dataset.compact()
    except KeyboardInterrupt:
        time.sleep(0.5)
        active = engine.session.sparkContext.statusTracker().getActiveJobsIds()
        print("interrupted, jobs that go on:", list(active), flush=True)


if __name__ == "__main__":
    # Tasks unpickle their classes by name: from a module that workers can import as well.
    import driver

    driver.main(sys.argv[1], sys.argv[2])
