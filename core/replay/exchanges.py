"""Exchanges with a model, as a recording holds them: a conversation that was sent, and the answer.

A request is answered by its conversation: the first exchange with the same one that has not been served yet, else the
last one served. System prompts are no part of it. Two conversations are the same if their messages are: same role, same
calls, same text without spaces around it. A recorded text of a person may stand anywhere in the text that is sent, as
clients put reminders around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from core.errors import Invalid
from core.events import Aggregate, Json, Message, ModelCompleted, Record
from core.log.kinds import KIND, SUBAGENT
from core.replay.exports.archive import Archive
from core.replay.exports.format import ExchangeLine
from core.thread.fold import fold
from core.thread.messages import text_of
from core.thread.state import ThreadState

ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}
"""Roles of OpenAI's protocol by the types of messages. System messages are no part of a conversation."""


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a conversation. `calls` are names and arguments."""

    role: str
    text: str = ""
    calls: list[tuple[str, Any]] = []

    def fits(self, sent: Turn) -> bool:
        """Tells whether a message that was sent is the recorded one."""
        if (self.role, self.calls) != (sent.role, sent.calls):
            return False
        recorded, text = self.text.strip(), sent.text.strip()
        return recorded == text or (self.role == "user" and recorded in text)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer of a model. `calls` are those of OpenAI's protocol: id, name and the arguments as JSON text."""

    text: str = ""
    calls: list[tuple[str, str, str]] = []
    usage: dict[str, int] = {}


class Exchange(msgspec.Struct, frozen=True):
    """A conversation and its answer. `place` names it in the recording."""

    place: str
    conversation: list[Turn]
    answer: Answer


class Mismatch(msgspec.Struct, frozen=True):
    """The nearest recorded exchange to a conversation that none fits, and their first difference.

    `recorded` and `sent` are None behind the end of a conversation.
    """

    place: str
    message: int
    recorded: Turn | None
    sent: Turn | None


class Recording:
    """The exchanges of a file, in their order."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.exchanges = list(exchanges)
        self._served: Counter[int] = Counter()

    @classmethod
    async def of(cls, archive: Archive) -> Recording:
        """Reads the exchanges of a file. Raises `Invalid` if it has none."""
        exchanges = [_recorded(line, number) for number, line in enumerate(archive.exchanges(), 1)]
        for aggregate in archive.aggregates():
            if aggregate.kind in (KIND, SUBAGENT):
                exchanges += _of_log(aggregate, await archive.read(aggregate))
        if not exchanges:
            raise Invalid(f"{archive.path.name}: no model was asked in it")
        return cls(exchanges)

    def answer(self, conversation: Sequence[Turn]) -> Answer | Mismatch:
        """Returns the answer to a conversation; if none fits, the nearest exchange."""
        hits = [n for n, exchange in enumerate(self.exchanges) if _differs(exchange.conversation, conversation) is None]
        if not hits:
            return self._nearest(conversation)
        index = min(hits, key=lambda hit: self._served[hit])
        self._served[index] += 1
        return self.exchanges[index].answer

    def _nearest(self, conversation: Sequence[Turn]) -> Mismatch:
        differs = [_differs(exchange.conversation, conversation) or 0 for exchange in self.exchanges]
        at = max(differs)
        nearest = self.exchanges[differs.index(at)]
        recorded = nearest.conversation[at] if at < len(nearest.conversation) else None
        return Mismatch(nearest.place, at, recorded, conversation[at] if at < len(conversation) else None)


def _differs(recorded: Sequence[Turn], sent: Sequence[Turn]) -> int | None:
    """Returns the index of the first message that differs; None if the conversations are the same."""
    for index, (expected, message) in enumerate(zip(recorded, sent, strict=False)):
        if not expected.fits(message):
            return index
    return None if len(recorded) == len(sent) else min(len(recorded), len(sent))


def _recorded(line: ExchangeLine, number: int) -> Exchange:
    try:
        conversation = msgspec.convert(line.conversation, list[Turn])
        return Exchange(f"exchange {number}", conversation, msgspec.convert(line.answer, Answer))
    except msgspec.ValidationError as error:
        raise Invalid(f"exchange {number}: {error}") from error


def _of_log(aggregate: Aggregate, records: Sequence[Record]) -> list[Exchange]:
    """Returns the exchanges of a thread: the conversation is the state before each answer."""
    state, folded, exchanges = ThreadState(), 0, []
    for number, record in enumerate(records):
        if isinstance(record.event, ModelCompleted):
            state, folded = fold(records[folded:number], state), number
            conversation = [_turn(message) for message in state.messages if message["type"] in ROLES]
            exchanges.append(Exchange(f"{aggregate}#{record.seq}", conversation, answer_of(record.event)))
    return exchanges


def _turn(message: Message) -> Turn:
    """Returns a message of a log as a part of a conversation."""
    calls = [(str(call.get("name")), call.get("args") or {}) for call in message.get("tool_calls") or ()]
    return Turn(ROLES[message["type"]], text_of(message.get("content", "")), calls)


def answer_of(event: ModelCompleted) -> Answer:
    calls = [
        (
            str(call.get("id")),
            str(call.get("name")),
            event.call_texts.get(str(call.get("id"))) or msgspec.json.encode(call.get("args") or {}).decode(),
        )
        for call in event.message.get("tool_calls") or ()
    ]
    usage = event.message.get("usage_metadata") or {}
    counts = {
        "prompt_tokens": int(usage.get("input_tokens", 0)),
        "completion_tokens": int(usage.get("output_tokens", 0)),
        "total_tokens": int(usage.get("total_tokens", 0)),
    }
    return Answer(text_of(event.message.get("content", "")), calls, counts)


def conversation_of(messages: Any) -> list[Turn]:
    """Returns the conversation of a request in OpenAI's protocol. Raises `Invalid`, naming the message."""
    if not isinstance(messages, list):
        raise Invalid("messages: must be an array")
    result = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise Invalid(f"messages[{index}]: must be an object")
        if (role := message.get("role")) in ROLES.values():
            calls = [_call(call, f"messages[{index}].tool_calls") for call in message.get("tool_calls") or ()]
            result.append(Turn(str(role), text_of(message.get("content")), calls))
    return result


def _call(call: Any, place: str) -> tuple[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise Invalid(f"{place}: a call has a function")
    try:
        return str(function.get("name")), msgspec.json.decode(str(function.get("arguments") or "{}"))
    except msgspec.DecodeError as error:
        raise Invalid(f"{place}: arguments: {error}") from error


def to_line(conversation: Sequence[Turn], answer: Answer) -> ExchangeLine:
    """Returns an exchange as a line of a file."""
    plain: list[Json] = msgspec.to_builtins(list(conversation))
    return ExchangeLine(conversation=plain, answer=msgspec.to_builtins(answer))
