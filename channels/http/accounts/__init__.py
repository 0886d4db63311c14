"""Accounts and permissions: the principal of a request, sessions, keys, identity providers, links without rights.

Imports `runs` and below.
"""
