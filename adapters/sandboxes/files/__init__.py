"""The file operations of the port on a folder of this machine: `operations`, with `search`, `edits` and `changes` once.

Every provider has them, remote ones on their copy. Imports `process` for the records of calls.
"""
