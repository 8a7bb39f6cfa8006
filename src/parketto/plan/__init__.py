"""Planning: from a snapshot and a request to plain data that says what will be rewritten. No I/O."""
