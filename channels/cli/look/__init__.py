"""Verbs that look at what was: `eval`."""
