"""Traits of Slack."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Step, Traits

TRAITS = Traits(
    name="slack",
    title="Slack",
    credentials=(
        Credential("bot_token", "Bot token (xoxb-…)"),
        Credential("app_token", "App-level token with connections:write (xapp-…)"),
    ),
    # Slack's rate limits: a message per second and channel; `chat.update` is tier 3, `chat.appendStream` tier 4.
    pace=Pace(edit_seconds=1.5, group_edit_seconds=1.5, send_seconds=1.0, group_per_minute=60, per_second=10),
    answers_can_be_found=True,
    largest_file=1 << 30,
    bundles=True,
    rates_answers=True,
    whispers=True,
    # Native streams take no buttons. Whoever waits for longer may want to stop; short answers stay quick.
    buttonless_seconds=8.0,
    setup=(
        Step(
            "Open https://api.slack.com/apps → Create New App → From a manifest → your workspace → JSON, and "
            "paste the manifest of the page /docs/slack."
        ),
        Step("Install App → Install to Workspace. Copy the Bot User OAuth Token.", "bot_token", r"xoxb-\S+"),
        Step(
            "Basic Information → App-Level Tokens → Generate Token and Scopes → connections:write → Generate. "
            "Copy the token.",
            "app_token",
            r"xapp-\S+",
        ),
        Step("In Slack, invite the bot to the channels in which it may answer: /invite @sika"),
    ),
)
OPTIONS = ("base_url", "suggested_prompts")
"""Settings besides the credentials."""
