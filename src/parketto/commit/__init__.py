"""The commit: the only code that touches live files. Journal, transaction, recovery."""
