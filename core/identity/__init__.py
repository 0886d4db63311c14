"""Principals: people, programs and the server's own processes; what they may do, and how much of it.

`principal` is who asks, with their permissions; `standing` says whether work goes on for them, `limits` how much.
`accounts` are people and keys as facts, `directory` decides on them; `passwords`, `lockout`, `sessions` and `activity`
are for signing in, `keys` for programs. `installation` has the secrets of an installation, `seal` keeps those of people
at rest.
"""
