"""Conditions and assignments, given as SQL or as PyArrow, Polars and Spark expressions."""
