"""Reading and writing Parquet files: footers, row groups as bytes, rows as batches."""
