"""Files as they are: stores, locks, hive paths, footers and the snapshot of a dataset."""
