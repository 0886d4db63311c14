"""Traits of the webhook."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Step, Traits

TRAITS = Traits(
    name="webhook",
    title="Webhook",
    credentials=(
        Credential("secret", "Secret that both sides sign with, at least 32 characters"),
        Credential("answer_url", "Address to which answers are posted", secret=False),
    ),
    pace=Pace(edit_seconds=0, group_edit_seconds=0, send_seconds=0, group_per_minute=0, per_second=20),
    answers_can_be_found=True,
    edits_are_free=False,
    largest_file=5 << 20,
    setup=(
        Step("Make a secret, as with: openssl rand -hex 32. The other side signs with it, too.", "secret", r"\S{32,}"),
        Step("The address to which answers are posted: https, and public.", "answer_url", r"https?://\S+"),
    ),
)
OPTIONS = ("allow_private", "listen")
"""Settings besides the credentials."""
