"""Who may: the principal of a request, sessions and keys, signing in, identity providers, links without rights.

Imports `runs` and below.
"""
