"""A conversation as it is folded from its events: state, messages, entries, past. Decides nothing about runs.

Imports the log and files; whoever works on runs (`core.runs`) imports it.
"""
