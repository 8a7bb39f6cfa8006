"""`format("parketto")`: Spark's own readers and writers, in batches and streams, on Parketto's datasets."""
