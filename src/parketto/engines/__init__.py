"""Engines: each carries out a plan by writing new files into staging. None of them touches a live file."""
