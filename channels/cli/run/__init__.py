"""Verbs that run a server: `serve`, `init`, `doctor`, `config`, `prompt`."""
