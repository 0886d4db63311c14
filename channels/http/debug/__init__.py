"""Routes of operators and debuggers: health, metrics, actors, the log of a thread as it is, and questions about it.

Imports `streams` and below.
"""
