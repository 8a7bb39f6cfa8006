"""Sorting: sort keys, space-filling curves, and sorts that spill to disk."""
