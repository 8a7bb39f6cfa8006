"""The health report: one HTML page with all it needs inside, for a browser without a network."""
