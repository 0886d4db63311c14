"""Feishu and Lark: one app's bot, over the platform's long connection.

Reading order: `incoming.py` (events as facts) and `cards.py` (replies as cards), both pure → `api.py` (REST calls
and what their errors mean) → `connection.py` (the long connection) → `draft.py` (answers that
grow) → `platform.py`. `traits.py` is what others may import.
"""
