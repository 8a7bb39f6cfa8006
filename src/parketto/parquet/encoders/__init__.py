"""Encoders of whole files and of row groups, with Polars or Arrow."""
