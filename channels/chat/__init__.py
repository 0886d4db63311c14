"""The shared parts of chat platforms, below the port (`core/chat/port.py`): `rest.py` (calls, files, tokens) upon
`calls.py` (what is certain after a call), `sockets.py` (a connection) and `reconnecting.py` (one after the other),
`lanes.py` (custody of what arrives), `edited.py` (drafts), `presses.py` (texts that answer a pressed button).
"""
