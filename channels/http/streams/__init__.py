"""How a translation of a thread is written to one client: server-sent events, and the logs of subagents.

Imports `runs` and below.
"""
