"""The DuckDB engine: joins, sorts and scans by DuckDB, out of core."""
