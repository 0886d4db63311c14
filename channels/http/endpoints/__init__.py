"""How a route is written: a typed function whose signature is the contract (`endpoint`), the thread or run of its path
(`call`), and the table of all routes (`table`).

Imports `server`.
"""
