"""Verbs of operators: accounts and keys, actors, dead letters, read models, the cluster, sandboxes' pods."""
