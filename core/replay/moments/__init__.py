"""A thread as it was at a moment: its state, files, models, the requests it sent, and its places in a long log.

Each is read from the nearest mark before the moment, not from the beginning of the log.
"""
