"""Telegram: `traits.py` → `updates.py` (what arrives, pure) → `texts.py` (what is shown, pure) → `api.py` (calls and
their errors) → `drafts.py` → `platform.py`.
"""
