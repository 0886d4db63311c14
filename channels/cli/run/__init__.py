"""Verbs that run a server: `serve`, `init`, `doctor`, `config`, `prompt`, and `channel`, which a server calls.

`reload` is `sika serve --reload`.
"""
