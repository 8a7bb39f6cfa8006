"""What operations share that change rows in place."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from parketto.engines.base import Context, Engine
from parketto.kernels.rows import ArrowRows
from parketto.kernels.work import StagedFile
from parketto.kernels.write import Output


def leave_schema(engine: Engine, output: Output, directory: str, context: Context) -> list[StagedFile]:
    """A dataset of which no row is left keeps its schema, in an empty file."""
    schema: pa.Schema = output.format.schema
    empty = replace(output, directory=directory, partition_by=(), row_schema=schema)
    return list(engine.write(ArrowRows(schema, ()), empty, context).staged)
