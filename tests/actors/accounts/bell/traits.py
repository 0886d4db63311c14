"""What is true of the platform."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Traits

TRAITS = Traits(
    name="bell",
    title="Bell",
    credentials=(Credential("bot_token", "Token"),),
    pace=Pace(edit_seconds=0, group_edit_seconds=0, send_seconds=0, group_per_minute=1000, per_second=1000),
    answers_can_be_found=True,
)
OPTIONS = ("base_url",)
