"""How rows are ordered: pure functions from Arrow data to sort keys."""
