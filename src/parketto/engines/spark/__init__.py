"""The Spark engine's room: the only place where pyspark is imported."""
