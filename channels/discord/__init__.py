"""Discord: `traits.py` (without a library), `inbound.py` (what arrives, pure) → `gateway.py` (the one connection) →
`api.py` (calls and their certainty) → `content.py` (our messages in Discord's form) → `platform.py` (the port).
"""
