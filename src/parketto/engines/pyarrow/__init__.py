"""The PyArrow engine: streams groups of files through bounded memory, with PyArrow and fsspec alone."""
