"""Traits of Discord. Limits: Discord's documentation, "Rate Limits" and "Create Message"."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Step, Traits

UPLOAD_LIMIT = 10 << 20
"""Bytes of a file in a server without boosts, and in a direct message."""

TRAITS = Traits(
    name="discord",
    title="Discord",
    credentials=(Credential("bot_token", "Bot token, from the page “Bot” of the application"),),
    # Five messages and five edits in five seconds of a channel; the platform's headers decide. Fifty calls in a second.
    pace=Pace(edit_seconds=1.2, group_edit_seconds=1.5, send_seconds=1.0, group_per_minute=0, per_second=40),
    answers_can_be_found=True,
    open_to_the_world=True,
    replies_are_topics=True,
    largest_file=UPLOAD_LIMIT,
    bundles=True,
    whispers=True,
    setup=(
        Step("Open https://discord.com/developers/applications → New Application."),
        Step("Bot → Privileged Gateway Intents → switch on Message Content Intent."),
        Step(
            "OAuth2 → URL Generator: scopes bot and applications.commands; permissions View Channels, Send "
            "Messages, Send Messages in Threads, Attach Files, Read Message History. Open the address below, and "
            "choose your server."
        ),
        Step("Bot → Reset Token. Copy it.", "bot_token", r"[\w-]+\.[\w-]+\.[\w-]+"),
        Step(
            "Everybody who shares a server with the bot can write to it: it answers the people whom you name. "
            "Your id: User Settings → Advanced → Developer Mode, then a right click on yourself → Copy User ID.",
            "allowed_users",
            r"\d+",
            optional=True,
        ),
    ),
    resumes=True,
)
OPTIONS = ("allowed_guilds", "base_url", "message_content")
"""Settings besides the credentials."""
