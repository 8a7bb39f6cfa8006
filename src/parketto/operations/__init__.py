"""The operations, each once: discover → plan → execute → verify → commit → report."""
