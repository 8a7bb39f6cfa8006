"""The resources of a task: memory, threads, batches, and staging."""
