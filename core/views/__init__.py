"""Read models in SQLite, made from the log: threads, runs, usage, full texts; and their questions."""
