"""The health of a dataset: what its listing, footers and log show, and what would improve it."""
