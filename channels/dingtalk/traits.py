"""Traits of DingTalk, for code that must not import its SDK."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Traits

TRAITS = Traits(
    name="dingtalk",
    title="DingTalk",
    credentials=(
        Credential("client_id", "Client ID (AppKey)", secret=False),
        Credential("client_secret", "Client Secret (AppSecret)"),
    ),
    # Cards: 300 ms between updates (research im-platforms §2.4). 20 messages a minute in a group, and 20 calls a second
    # of an app to an API, of which five are left to the working sign.
    pace=Pace(edit_seconds=0.5, group_edit_seconds=1.0, send_seconds=0.5, group_per_minute=20, per_second=15),
    answers_can_be_found=False,
    edits_are_free=False,
    largest_file=20 << 20,
    whispers=True,
)

OPTIONS = ("robot_code", "card_template_id", "button_template_id", "base_url", "upload_url")
"""Further keys of an account's settings."""
