"""Endpoints: a typed function whose signature is the contract of its route (`endpoint`), the thread or run of its path
(`call`), and the table of all routes (`table`).

Imports `server`.
"""
