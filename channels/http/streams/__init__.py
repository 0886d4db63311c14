"""Streams to one client: server-sent events of any translation of a thread, and the logs of subagents.

Imports `runs` and below.
"""
