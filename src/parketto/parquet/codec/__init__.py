"""Which library decodes and encodes pages: Polars where values survive exactly and it is faster, or Arrow."""
