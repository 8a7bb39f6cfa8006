"""Plans: plain data that describes what will be rewritten. No I/O."""
