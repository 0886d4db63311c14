"""Kinds of the aggregates that hold conversations. Imports nothing, so that readers of files need no bus."""

KIND = "thread"
SUBAGENT = "subagent"
"""The kind of the conversations of subagents: the same facts, folded the same way, on logs of their own."""
