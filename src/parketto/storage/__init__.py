"""Storage backends, locks, hive partition paths and data file listings."""
