"""The tasks that engines run: independent units of work on files."""
