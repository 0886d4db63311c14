"""The documents that a server shows: the API (OpenAPI), the bus (AsyncAPI), and the pages in words.

Imports `endpoints` and below.
"""
