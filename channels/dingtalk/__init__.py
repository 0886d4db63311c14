"""DingTalk: `api.py` (REST, tokens, errors) → `translation.py` (what arrives) → `stream.py` (the connection) →
`card.py` (answers that grow), `sign.py` → `platform.py` (the port).
"""
