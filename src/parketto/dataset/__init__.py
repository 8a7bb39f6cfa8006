"""`Dataset`, the main entry point: all operations, on any engine."""

from parketto.dataset.dataset import Dataset

__all__ = ["Dataset"]
