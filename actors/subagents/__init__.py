"""Subagents: runs that answer a tool call of another run."""
