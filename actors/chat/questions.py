"""Questions to people in chat: their texts and buttons, and the answers to them. Pure functions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from core import forms
from core.chat.facts import Button
from core.control import UNSEEN
from core.events import ApprovalResolved, Interrupt, Json, Message
from core.ids import ordinal
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.values import CLARIFICATION, asks_person

APPROVE, REJECT = "approve", "reject"
_REJECT = Button(REJECT, "Reject", "danger")
_BUTTONS = (Button(APPROVE, "Approve", "primary"), _REJECT)
_DECLINE = Button(REJECT, "Decline", "danger")
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(forms.YES, APPROVE),
    **dict.fromkeys(forms.NO, REJECT),
}
CHOICES = "\n\n1. Approve\n2. Reject"
"""The numbers under the question for an approval, for typed answers."""
ONLY_REJECT = "\n\n1. Reject"
MOST_CHARACTERS = 12_000
"""Limit of the arguments of a call in a question: some four messages. What is longer cannot be approved in a chat."""
_TOO_LONG = (
    "{left} more characters of this call do not fit here, so it cannot be approved here: `sika chat` and "
    "`/api/threads/…/approvals` show all of it."
)
_CHANGES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("str_replace", "edit_files"), ("old_str", "new_str")),
    "write_file": ("", "content"),
}
"""The arguments of tools that change files: the text before, if there is one, and after."""
_BREAKS = re.compile("[\r\v\f\u2028\u2029]")
"""Matches ends of lines that a difference would not show."""
_UNSEEN = re.compile(rf"[{UNSEEN}]")
_OUTCOMES: Mapping[str, str] = {
    "approve": "✅ Approved",
    "edit": "✅ Approved with changes",
    "reject": "❌ Rejected",
    "expire": "⌛ Nobody decided in time, so it was not done",
}
GONE_ON = "➖ Not decided: the conversation went on"
AGAIN = "➖ Asked again below"


class Question(NamedTuple):
    """`id`: of the approval, of the interrupt, or of the message with which the agent asked."""

    id: str
    text: str
    buttons: Sequence[Button] = ()
    approval: bool = False
    form: bool = False
    """True: it is answered by a text."""

    def option(self, text: str) -> Button | None:
        """Returns the button that a typed answer means: its number, its text, or yes and no."""
        word = text.strip().casefold()
        if not self.form and (number := ordinal(word, len(self.buttons))):
            return self.buttons[number - 1]
        if self.form:  # a number or a no may be the content of a field
            return self.buttons[0] if word in forms.DECLINED else None
        if self.approval:
            word = _WORDS.get(word.rstrip(".!"), word)
        return next((button for button in self.buttons if word in (button.id, button.label.casefold())), None)


def pending(state: ThreadState) -> list[Question]:
    """Returns the questions that a thread waits on; none while a run is at work or waits."""
    if any(state.runs.open()):
        return []
    if state.paused is not None:
        return [_of_interrupt(interrupt) for interrupt in state.paused.interrupts]
    question = of_messages(state.messages)
    return [question] if question else []


def overtaken(interrupts: Sequence[Interrupt]) -> list[Question]:
    """Returns questions that nobody answered before the conversation went on: without buttons."""
    questions = map(_of_interrupt, interrupts)
    return [Question(each.id, f"{each.text.removesuffix(CHOICES)}\n\n{GONE_ON}") for each in questions]


def of_messages(messages: Sequence[Message]) -> Question | None:
    """Returns the question with which a conversation ends."""
    if not asks_person(messages):
        return None
    question = next(message for message in reversed(messages) if str(message.get("id")).startswith(CLARIFICATION))
    options = options_of(question)
    buttons = [Button(option["id"].replace("option-", "o"), option["label"]) for option in options]
    return Question(str(question["id"]), text_of(question.get("content", "")), tuple(buttons))


def options_of(message: Message) -> list[Json]:
    """Returns the options of a question's card."""
    artifact = message.get("artifact")
    card = artifact.get("human_input") if isinstance(artifact, dict) else None
    return list(card.get("options", ())) if isinstance(card, dict) else []


def response(message: Message, button: Button) -> Json | None:
    """Returns the response to a question's card as DeerFlow's clients send it; None without such a card."""
    options = options_of(message)
    if (number := ordinal(button.id.removeprefix("o"), len(options))) is None:
        return None
    card, option = message["artifact"]["human_input"], options[number - 1]
    return {
        "version": 1,
        "kind": "human_input_response",
        "response_kind": "option",
        "source": card["source"],
        "request_id": card["request_id"],
        "option_id": option["id"],
        "value": option["value"],
    }


def outcome(resolved: ApprovalResolved, by: str = "", *, form: bool = False) -> str:
    """Returns the line that says what was decided. `by`: who, if it is known better than by the log."""
    if form and resolved.decision == "edit":
        return f"➡️ Answered by {by or resolved.by}"
    who = by or resolved.by or ""
    if resolved.decision == "expire":
        return _OUTCOMES["expire"]
    return _OUTCOMES[resolved.decision] + (f" by {who}" if who else "")


def decided(button: Button, by: str, *, approval: bool) -> str:
    """Returns the line that says which button was chosen."""
    if approval:
        return f"{_OUTCOMES[button.id]} by {by}"
    return f"➡️ {button.label} ({by})"


def _of_interrupt(interrupt: Interrupt) -> Question:
    match interrupt.value:
        case {"type": "approval", "form": dict() as form, "question": str(text)}:
            parts = [text, forms.described(form)]
            if error := interrupt.value.get("error"):
                parts.append(f"The last answer did not count: {error}")
            return Question(interrupt.id, "\n\n".join(parts), (_DECLINE,), approval=True, form=True)
        case {"type": "approval", "action_requests": [call, *_]}:
            return _approval(interrupt, call, interrupt.value.get("error"))
        case str() as text:
            return Question(interrupt.id, text)
    return Question(interrupt.id, _cut(msgspec.json.encode(interrupt.value, enc_hook=str).decode()))


def _approval(interrupt: Interrupt, call: Mapping[str, Any], error: str | None) -> Question:
    """Returns the question for a call, with all that will run; without *Approve* if that is too long to be shown."""
    shown, left = _arguments(str(call.get("name")), call.get("args"))
    lines = [f"May I do this? `{call.get('name')}`"]
    lines += [str(call["description"])] if call.get("description") else []
    lines += [shown]
    lines += [_TOO_LONG.format(left=left)] if left else []
    lines += [f"The last answer did not count: {error}"] if error else []
    buttons = _BUTTONS if not left else (_REJECT,)
    return Question(interrupt.id, "\n\n".join(lines) + (CHOICES if not left else ONLY_REJECT), buttons, approval=True)


def _arguments(tool: str, args: Any) -> tuple[str, int]:
    """Returns the arguments of a call as people read them, a command as it is, changes of files as differences, and the
    number of characters that are left out. Unseen characters are shown by their numbers.
    """
    rest = dict(args) if isinstance(args, Mapping) else args
    command = rest.pop("command", None) if isinstance(rest, dict) else None
    command = command if isinstance(command, str) else ""
    parts = [_block(command, "bash")] if command else []
    edits = rest.get("edits") if tool == "edit_files" and isinstance(rest, dict) and len(rest) == 1 else [rest]
    for each in edits if isinstance(edits, list) and edits else [rest]:
        diff, more = _diff(tool, each)
        parts += [_block(diff, "diff")] if diff else []
        if more or not (diff or command):
            text = msgspec.json.format(msgspec.json.encode(more, enc_hook=str), indent=2).decode()
            parts.append(_block(text, "json"))
    shown = "\n\n".join(parts)
    return shown[:MOST_CHARACTERS], max(0, len(shown) - MOST_CHARACTERS)


def _diff(tool: str, args: Any) -> tuple[str, Any]:
    """Returns the change of a file that a call makes, with all of its lines, and the arguments that are not in it."""
    old, new = _CHANGES.get(tool, ("", ""))
    named = {name: args.get(name, "") for name in ("path", old, new) if name} if new and isinstance(args, dict) else {}
    texts = [text for text in named.values() if isinstance(text, str) and not _BREAKS.search(text)]
    if (
        not named
        or len(texts) < len(named)
        or not texts[0]
        or "\n" in texts[0]
        or len("".join(texts)) > MOST_CHARACTERS
    ):
        return "", args
    before, after = (text.split("\n") if text else [] for text in (named.get(old, ""), named[new]))
    lines = list(difflib.unified_diff(before, after, lineterm="", n=len(before)))[3:]
    if not lines:
        return "", args
    return "\n".join([f"+++ {texts[0]}", *lines]), {key: value for key, value in args.items() if key not in named}


def _block(text: str, language: str) -> str:
    """Returns a code block that its text cannot end."""
    text = _UNSEEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text)
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}{language}\n{text}\n{fence}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
