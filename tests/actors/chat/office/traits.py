"""A platform of an organisation: whoever is there may talk."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Traits

PACE = Pace(edit_seconds=1, group_edit_seconds=3, send_seconds=1, group_per_minute=20, per_second=30)
TRAITS = Traits("office", "Office", (Credential("token", "Token"),), PACE, answers_can_be_found=True)
