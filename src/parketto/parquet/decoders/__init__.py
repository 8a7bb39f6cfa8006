"""Decoders of row groups, besides the one of Arrow (`parquet/reader.py`)."""
