"""The front door: every operation once, whatever engine carries it out."""

from parketto.dataset.dataset import Dataset

__all__ = ["Dataset"]
