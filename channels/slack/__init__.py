"""Slack over Socket Mode: `traits.py`, `inbound.py` (what arrives, pure) → `socket.py` (the connection) → `web.py`
(calls and their errors) → `platform.py` (the port) and `draft.py` (answers that grow).
"""
