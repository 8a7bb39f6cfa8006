"""A driver with given Spark settings: runs operations on a dataset and prints the results."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from helpers.history import history
from parketto import Dataset
from parketto.engines.spark.engine import SparkEngine


def settings_of(spark: SparkSession) -> set[tuple[str, str]]:
    return {*spark.sparkContext.getConf().getAll(), *spark.conf.getAll.items()}


def main(root: str, settings: dict[str, str]) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.createDataFrame([(1,)], "n int").collect()  # the first use of a session adds settings to it
    before = settings_of(spark)
    large = Dataset(root, engine=SparkEngine(spark, broadcast_mb=1e-6, shuffle_mb=1e-6))
    found = list(history(Dataset(root, engine="spark", spark=spark), large, spark.createDataFrame))
    changed = sorted(before ^ settings_of(spark))
    print(json.dumps({"history": found, "changed": changed, "views": len(spark.catalog.listTables())}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
