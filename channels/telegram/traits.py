"""Telegram, for who must not import its SDK. Limits: those of the Bot API."""

from __future__ import annotations

from collections.abc import Mapping

from core.chat.port import Credential, Pace, Step, Traits

UPLOAD_LIMIT = 50_000_000
"""Bytes of a document that a bot may send."""
PHOTO_LIMIT = 10_000_000
MOST_IN_ALBUM = 10
DOWNLOAD_LIMIT = 20_000_000
"""Bytes of a file that a bot may fetch."""

TRAITS = Traits(
    name="telegram",
    title="Telegram",
    credentials=(Credential("bot_token", "Bot token, from @BotFather"),),
    # One message per second in a chat, 20 per minute in a group, 30 per second over all; edits count. The pauses
    # between edits are DeerFlow's.
    pace=Pace(edit_seconds=1.0, group_edit_seconds=3.0, send_seconds=1.0, group_per_minute=20, per_second=30),
    answers_can_be_found=False,
    open_to_the_world=True,
    replies_are_topics=True,
    topics_are_rooms=True,
    deep_link="https://t.me/{bot_username}?start={code}",
    largest_file=UPLOAD_LIMIT,
    bundles=True,
    whispers=True,
    setup=(
        Step(
            "Write /newbot to https://t.me/BotFather, choose a name and a username, and copy the token.",
            "bot_token",
            r"\d+:[\w-]+",
        ),
        Step("For groups: /setjoingroups at @BotFather lets people add the bot. /setprivacy can stay as it is."),
        Step(
            "Anybody in the world can write to a bot: it answers the people whom you name. Your numeric id, "
            "which it tells you when you write to it without being named.",
            "allowed_users",
            r"\d+",
            optional=True,
        ),
    ),
)

OPTIONS = ("base_url",)
"""Settings besides the credentials."""

COMMANDS: Mapping[str, str] = {
    "new": "Begin a new conversation",
    "status": "Show the current conversation",
    "stop": "Stop the answer at work",
    "retry": "Answer the last message again",
    "again": "Send a lost answer once more",
    "undo": "Take back the last turn",
    "queue": "Show the messages that wait",
    "goal": "Set or clear the goal",
    "models": "List the models",
    "memory": "Show what is remembered",
    "bootstrap": "Set up the agent in a conversation",
    "connect": "Connect your account with a code",
    "help": "List the commands",
}
"""The menu of the bot (DeerFlow's commands, and ours)."""
