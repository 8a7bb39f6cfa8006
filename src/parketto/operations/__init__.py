"""One module per operation: discover → plan → execute → verify → commit → report."""
