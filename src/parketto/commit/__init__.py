"""Commits: log, transactions and recovery. The only code that changes live files."""
