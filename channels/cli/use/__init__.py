"""Verbs of people who talk to the agent: `chat`, `threads`, `folders`, `acp`."""
