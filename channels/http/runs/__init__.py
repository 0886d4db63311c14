"""Requests for runs, now and later, their messages, and keys of repeated requests: the same for all protocols.

Imports `endpoints` and `server`.
"""
