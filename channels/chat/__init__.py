"""The shared parts of chat platforms, below the port (`core/chat/port.py`): `lanes.py` (custody of what arrives),
`reconnecting.py` (connections, one after the other), `calls.py` (what is certain after a call over HTTP), `presses.py`
(texts that answer a pressed button).
"""
