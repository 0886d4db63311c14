"""The facts of a conversation on a chat platform: `log.chat.<account>-<digest>`.

An account's name is `slack`, or `slack-work` where a platform has several. A conversation is a chat, or a topic in it
(a thread of Slack, a forum topic). The facts carry the account's name as a label, by which its process selects them.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from core.errors import Invalid
from core.events import Aggregate, Event
from core.phrases import Phrase

KIND = "chat"
ACCOUNT = re.compile(r"[a-z]+(-[a-z0-9_]{1,32})?")
"""A platform, and the account's own name if it is not the only one."""
CONVERSATION = re.compile(rf"{ACCOUNT.pattern}-[0-9a-f]{{32}}")
"""The id of a conversation's aggregate."""

Purpose = Literal["answer", "notice", "question", "push"]
"""The answer of a run, a reply of the system itself (to commands, refusals), a question with options, and what a
schedule or a tool sends unasked."""


def conversation(account: str, chat: str, topic: str = "") -> Aggregate:
    """Returns the aggregate of a conversation. Raises `Invalid` for what cannot be an account's name."""
    if not ACCOUNT.fullmatch(account):
        raise Invalid(f"account {account!r}: the name of a platform, and if it has several: a dash, a-z, 0-9 and _")
    digest = hashlib.blake2b(f"{chat}\n{topic}".encode("utf-8", "replace"), digest_size=16).hexdigest()
    return Aggregate(KIND, f"{account}-{digest}")


def account_of(conversation_id: str) -> str:
    """Returns the account of a conversation."""
    return conversation_id.rpartition("-")[0]


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something is said. Ids are the platform's."""

    chat: str
    topic: str = ""
    kind: Literal["private", "group"] = "private"
    reply_to: str = ""
    """The message that is answered."""
    sender: str = ""
    """The person that is answered; some platforms address people, not chats."""


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a received message. `id` is the platform's handle, which may expire."""

    id: str
    name: str
    kind: Literal["image", "document", "voice", "video"] = "document"
    mime: str = ""
    size: int = 0
    """Bytes, 0 if the platform does not say."""
    transcript: str = ""


class Quoted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to which a person replies, or which they share, as the platform delivers it."""

    text: str
    author: str = ""


class Choice(msgspec.Struct, frozen=True):
    """A pressed button: the plan that showed it (`DeliveryPlanned.plan`), and its `Button.id`."""

    plan: str
    button: str


class Button(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id`: at most 12 characters, as some platforms leave little room."""

    id: str
    label: str
    style: Literal["", "primary", "danger"] = ""


class Artifact(msgspec.Struct, frozen=True):
    """A file to be sent: a path of the owner's thread (`/mnt/user-data/outputs/…`)."""

    path: str
    name: str


ASKED = "asked"
"""The outcome of a message with files about which the person was asked."""


class ChatReceived(Event, frozen=True):
    """A person's message, or a pressed button. It is in the log before the platform is told that it has arrived."""

    phrase = Phrase(
        "Chat message arrived",
        "收到聊天消息",
        "<{sender_name}><!sender_name?{sender}>:< {text:quote}><deleted? deletes {message}>< presses {choice.button}>"
        "< quotes {quoted.text:quote}>< {attachments.name}>",
        "<{sender_name}><!sender_name?{sender}>：<{text:quote}><deleted? 删除 {message}>< 按下 {choice.button}>"
        "< 引用 {quoted.text:quote}>< {attachments.name}>",
    )
    message: str
    """The platform's id of the message, or one of the press. With `edited`, `deleted` and `choice`, it is the same at
    each delivery, and that of no other message or press (`key_of`)."""
    target: Target
    """Where the message was written: an answer goes there."""
    sender: str
    sender_name: str = ""
    text: str = ""
    """Without the mention of the bot; empty if that is all."""
    attachments: tuple[Attachment, ...] = ()
    album: str = ""
    """Messages with the same one belong together."""
    mentioned: bool = False
    """It was addressed to the bot: in a private chat, by a mention, or as a reply to it."""
    choice: Choice | None = None
    quoted: Quoted | None = None
    edited: str = ""
    """The time of the edit, of an edited message."""
    deleted: bool = False
    """True: the message was deleted on the platform. It has no words then."""
    sent_at: str = ""
    """When the person sent it, as the platform says: ISO 8601 in UTC."""


class Fetched(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fetched attachment: the name of its object in the store, or what was wrong."""

    name: str
    object: str = ""
    mime: str = ""
    size: int = 0
    error: str = ""


DELETED = "deleted"
"""End of the key of a deletion."""


def key_of(event: ChatReceived) -> str:
    """Returns what is the same at each delivery of a message, and of each press of a button."""
    choice = f"{event.choice.plan}/{event.choice.button}" if event.choice else ""
    return "/".join(part for part in (event.message, event.edited, DELETED if event.deleted else "", choice) if part)


class ChatFetched(Event, frozen=True):
    """The attachments of a message have arrived, each in the object store or with the reason why not."""

    phrase = Phrase(
        "Attachments fetched",
        "附件已获取",
        "{files.name}<; failed: {files.error}>",
        "{files.name}<；失败：{files.error}>",
    )
    message: str
    """The message's key (`key_of`)."""
    files: tuple[Fetched, ...]


class ChatRouted(Event, frozen=True):
    """The message became a run, or had another outcome (`command`, `choice`, `answer`, `steered`, `ignored`, `refused`,
    `merged`: it is part of another message's turn; `asked`: it has files without words, and goes with the next ones).
    """

    phrase = Phrase(
        "Chat message handled",
        "聊天消息已处理",
        "{outcome}<, run {run_id}><: {reason}>",
        "{outcome}<，运行 {run_id}><：{reason}>",
    )
    message: str
    """The message's key (`key_of`)."""
    outcome: str
    thread: str = ""
    run_id: str = ""
    """The run to whose answer a draft is shown while it is at work."""
    user: str = ""
    target: Target | None = None
    reason: str = ""


class ChatBegun(Event, frozen=True):
    """From here on the messages of the conversation go to this thread."""

    phrase = Phrase("Chat conversation begun", "聊天会话已开始", "thread {thread} of {user}", "{user} 的对话 {thread}")
    thread: str
    user: str


FAILED_NOTICE = "/failed"
"""End of the id of the plan that tells a person that another one failed."""
SEND_AGAIN = Button("again", "Send again")
"""The button of such a plan, if the fate of the other one is unknown."""
STOP = Button("stop", "Stop", "danger")
"""The button of an answer that grows: its plan is the run."""
ANEW = Button("anew", "Answer anew")
"""The button below the question whether a message that was changed is to be answered anew."""


GOOD, BAD = Button("good", "Good answer"), Button("bad", "Bad answer")
"""The buttons below an answer (`Traits.rates_answers`): its plan is the run."""
RATINGS = {GOOD.id: 1, BAD.id: -1}


class DeliveryPlanned(Event, frozen=True):
    """Something is to be said in the conversation. `plan`: the run whose answer it is, or one of its own."""

    phrase = Phrase(
        "Chat message planned",
        "聊天消息待发送",
        "{purpose}<replaces? in place of another>:< {text:quote}>< [{buttons.label}]>< {artifacts.name}>",
        "{purpose}<replaces?，替换另一条>：<{text:quote}>< [{buttons.label}]>< {artifacts.name}>",
    )
    plan: str
    purpose: Purpose
    target: Target
    text: str = ""
    """Markdown."""
    buttons: tuple[Button, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    thread: str = ""
    user: str = ""
    replaces: str = ""
    """The plan whose message is changed: a question that was decided."""
    question: str = ""
    """The question that the buttons answer: the id of an approval, or of a message of `ask_clarification`."""
    unless_answered: str = ""
    """It is not said any more once the answer of this run is planned."""
    private: bool = False
    """Only `target.sender` sees it, where the platform can do that (`Traits.whispers`)."""
    first: int = 0
    """The first part that is said: an earlier plan has said those before it."""


class DeliveryDrafted(Event, frozen=True):
    """The platform has a message in which the answer of a run grows; the answer will replace it."""

    phrase = Phrase(
        "Chat draft begun",
        "聊天草稿已开始",
        "the answer grows in message {message}",
        "回答在消息 {message} 中增长",
    )
    plan: str
    message: str


class DeliveryAttempted(Event, frozen=True):
    """A part is about to be sent: if nothing follows, its fate is unknown."""

    phrase = Phrase("Sending to the chat", "正在发送到聊天", "part {part:next}", "第 {part:next} 部分")
    plan: str
    part: int
    withdrawn: bool = False
    """The platform refused it, or was not reached: certainly nothing was sent."""


class DeliverySent(Event, frozen=True):
    """The platform has a part: `part` of `parts`, the texts before the files."""

    phrase = Phrase(
        "Sent to the chat",
        "已发送到聊天",
        "part {part:next} of {parts}<, message {message}>",
        "第 {part:next}/{parts} 部分<，消息 {message}>",
    )
    plan: str
    part: int
    parts: int
    message: str = ""
    """The platform's id of the message, if it tells one."""


class DeliveryFailed(Event, frozen=True):
    """A plan ends here. `fate` of the part at which it ended: `refused` by the platform, `gone` (the chat is), or
    `unknown`: it may have been delivered, and sending it again could double it.
    """

    phrase = Phrase(
        "Not sent to the chat",
        "未能发送到聊天",
        "part {part:next}, {fate}: {reason}",
        "第 {part:next} 部分，<fate=refused?被拒绝><fate=gone?聊天已不存在><fate=unknown?结果未知>：{reason}",
    )
    plan: str
    part: int
    fate: Literal["refused", "gone", "unknown"]
    reason: str


class ChatErased(Event, frozen=True):
    """What was written and said in these deleted threads is erased from the conversation; only ids stay."""

    phrase = Phrase("Chat texts erased", "聊天内容已删除", "words of {threads}", "对话 {threads} 的内容")
    threads: tuple[str, ...]


class TopicNoted(Event, frozen=True):
    """A message of ours belongs to this topic of its chat: replies to it go on there (`Traits.replies_are_topics`)."""

    phrase = Phrase("Chat topic noted", "聊天话题已记录", "{topic}")
    topic: str


def sent_message(account: str, chat: str, message: str) -> Aggregate:
    """Returns the aggregate that tells the topic of a message of ours."""
    return Aggregate("chat-sent", conversation(account, chat, message).id)


# ── of the port that was there before: nothing writes these any more ────────────────────────────────────────────────


class ConversationBegun(Event, frozen=True):
    """From here on the messages of a conversation go to this thread."""

    phrase = Phrase(
        "Channel conversation linked",
        "渠道会话已关联",
        "its messages go to thread {thread}",
        "其消息进入对话 {thread}",
    )
    thread: str


class ReplyDelivered(Event, frozen=True):
    """The outcome of the run was delivered to the conversation it was asked for in."""

    phrase = Phrase("Reply delivered", "回复已送达", "delivered to the conversation", "已送达会话")
