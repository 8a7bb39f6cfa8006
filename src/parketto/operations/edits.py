"""Helpers shared by the operations that change rows in place."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from parketto.engines.base import Context, Engine
from parketto.parquet.output import Output
from parketto.parquet.row_source import ArrowRows
from parketto.runtime.staging import StagedFile


def write_empty_file(engine: Engine, output: Output, directory: str, context: Context) -> list[StagedFile]:
    """Write an empty file, which keeps the schema of a dataset without rows."""
    schema: pa.Schema = output.format.schema
    empty = replace(output, directory=directory, partition_by=(), row_schema=schema)
    return list(engine.write(ArrowRows(schema, ()), empty, context).staged)
