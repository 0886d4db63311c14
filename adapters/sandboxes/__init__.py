"""Sandboxes of commands. `bubblewrap`, `host`, `docker` and `remote` are providers; the rooms below them have what
they share.
"""
