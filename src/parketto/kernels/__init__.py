"""The work itself, with Arrow: tasks over files that any engine can run, in a thread or on another machine."""
