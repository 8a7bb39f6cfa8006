"""An Airflow DAG for a project of `parketto init-pipeline`: hourly, never two runs at once.

Needs apache-airflow-providers-apache-spark, and `parketto[pipelines]` in the Python that runs the tasks.
Retries are safe: every step skips what the logs of the datasets show as done.
"""

from __future__ import annotations

import datetime as dt
import os

from airflow.providers.apache.spark.operators.spark_pipelines import SparkPipelinesOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

PROJECT = os.environ.get("PARKETTO_PIPELINE", "/srv/events")

with DAG(
    "parketto_pipeline",
    schedule="@hourly",
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": dt.timedelta(minutes=5)},
) as dag:
    ingest = SparkPipelinesOperator(
        task_id="ingest",
        pipeline_spec=f"{PROJECT}/spark-pipeline.yml",
        conn_id="spark_default",
    )
    merge = SparkSubmitOperator(
        task_id="merge",
        application=f"{PROJECT}/run.py",
        application_args=["merge", "aggregate", "maintain"],
        conn_id="spark_default",
    )
    ingest >> merge
