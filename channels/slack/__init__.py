"""Slack over Socket Mode: `traits.py` (without the SDK), `inbound.py` (what arrives, pure) → `socket.py` (the one
connection) → `web.py` (calls and their certainty) → `platform.py` (the port) and `draft.py` (answers that grow).
"""
