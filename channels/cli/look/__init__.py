"""Verbs that look at what was, besides `log`: `eval`, `sql`."""
