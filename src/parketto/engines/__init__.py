"""Engines: each executes plans by writing new files to staging. No engine touches a live file."""
