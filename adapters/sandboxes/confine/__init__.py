"""Confinement of a process by bubblewrap: namespaces (`confinement`), the filter of system calls (`seccomp`), and what
it sees of the host (`etc`, `toolkit`). Commands and converters of documents are confined so. Imports no other room.
"""
