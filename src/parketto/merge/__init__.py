"""Merging: one set of rules, and the algorithms with which engines apply them."""
