"""The shared parts of chat platforms, below the port (`core/chat/port.py`): `rest.py` (calls, files, tokens) upon
`calls.py` (what is certain after a call), `lanes.py` (custody of what arrives), `reconnecting.py` (connections, one
after the other), `edited.py` (drafts), `presses.py` (texts that answer a pressed button).
"""
