"""Streams of chat completions in the ways of many providers, harmed and unharmed, and what may become of them.

An answer is made at random, rendered in a way of numbering, naming and cutting that some provider has, and then

* re-cut: events in other blocks of bytes, several in one, repeated where that says nothing new, other line ends, pings.
  The answer must be exactly the one that was rendered;
* harmed: an event dropped, repeated or given another number, the body cut off, a byte changed. Then the answer may only
  be an error, or have what was delivered: each call the right one, or one that is not made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
TOOLS = ("bash", "read", "read_file", "web_search")
ERRORS = frozenset({"APIError", "APIConnectionError", "AnswerBroken"})
_PYTHON = (
    "Traceback",
    "object has no attribute",
    "NoneType",
    "JSONDecodeError",
    "ValidationError",
    "KeyError",
    "codec can't",
)
_WORDS = (
    "the",
    " answer",
    " is",
    " 42",
    "é",
    "😀",
    "\n",
    ' "quoted"',
    " {",
    "}",
    " <b>",
    "\\n",
    "中文",
    "data: x",
    "[DONE]",
)


@dataclass
class Case:
    """A stream: its blocks of bytes, and what it says."""

    blocks: list[bytes]
    text: str
    calls: list[list[Any]]
    tokens: list[int] | None
    exact: bool
    harm: str = ""


def made(seed: int) -> Case:
    """Returns the case of a number: always the same one."""
    dice = random.Random(seed)
    text = "".join(dice.choice(_WORDS) for _ in range(dice.randrange(0, 6)))
    calls = [[dice.choice(TOOLS), _arguments(dice)] for _ in range(dice.choice((0, 0, 1, 1, 1, 2, 3)))]
    if not text and not calls:
        text = "x"
    total = [dice.randrange(1, 5000), dice.randrange(1, 500)]
    events, tokens = _rendered(dice, text, calls, total)
    case = Case([], text, calls, tokens, exact=dice.random() < 0.5)
    if case.exact:
        body = _body(dice, _recut(dice, events), done=dice.random() < 0.8)
    else:
        case.harm = dice.choice(tuple(_HARMS))
        body = _HARMS[case.harm](dice, events)
    case.blocks = _blocks(dice, body)
    return case


def wrong(case: Case, result: Mapping[str, Any]) -> str:
    """Returns what is wrong with the answer that came of a case; empty if nothing is."""
    if "error" in result:
        if any(word in result["error"] for word in _PYTHON) or result.get("class", "APIError") not in ERRORS:
            return f"the error is Python's: {result}"
        return "an error of a good stream" if case.exact else ""
    tokens = result.get("tokens")
    if tokens and case.tokens and case.harm != "byte" and any(a > b for a, b in zip(tokens, case.tokens, strict=True)):
        return "tokens were counted twice"
    calls = result.get("calls", [])
    if case.exact:
        same = (result.get("text", ""), calls, tokens or None) == (case.text, case.calls, case.tokens)
        return "" if same else "another answer"
    if case.harm == "cut off":
        return "half an answer"
    return next((f"a call that was not sent: {call}" for call in calls if not _was_sent(case, call)), "")


def _was_sent(case: Case, call: Any) -> bool:
    """Tells whether a call is one of those sent, or has its error. Of arguments that lack a piece, or have one twice,
    nobody can tell, as long as they are JSON; but never are there none.
    """
    return (
        isinstance(call, str) or call in case.calls or (case.harm in ("dropped", "repeated", "byte") and bool(call[1]))
    )


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _arguments(dice: random.Random) -> Json:
    values: tuple[Any, ...] = (
        "a",
        "",
        "😀 é",
        1,
        -2.5,
        True,
        None,
        [1, "b"],
        {"c": {"d": []}},
        'x" \\ }{',
        "echo $((1+2))",
    )
    arguments = {name: dice.choice(values) for name in dice.sample(("path", "q", "n", "text"), dice.randrange(1, 4))}
    return arguments


def _cut(dice: random.Random, text: str, most: int) -> list[str]:
    """Returns the text in at most so many pieces, none of them empty."""
    places = (
        sorted(dice.sample(range(1, len(text)), min(len(text) - 1, dice.randrange(0, most)))) if len(text) > 1 else []
    )
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def _rendered(
    dice: random.Random, text: str, calls: Sequence[Any], total: list[int]
) -> tuple[list[Json], list[int] | None]:
    """Returns the events of an answer as some provider sends them, and the counts that it reports."""
    events = [_event({"role": "assistant", "content": dice.choice(("", None))})] if dice.random() < 0.8 else []
    events += [_event({"content": piece}) for piece in _cut(dice, text, 4)] if text else []
    events += _calls(dice, calls)
    reason = (
        dice.choice(("tool_calls", "stop", "tool_use", "function_call"))
        if calls
        else dice.choice(("stop", "STOP", "eos"))
    )
    if dice.random() < 0.2 and events:
        events[-1]["choices"][0]["finish_reason"] = reason
    else:
        events.append(_event({}, reason))
    usage = {"prompt_tokens": total[0], "completion_tokens": total[1], "total_tokens": sum(total)}
    match dice.choice(("none", "end", "own", "each", "twice")):
        case "end":
            events[-1]["usage"] = usage
        case "own":
            events.append({"choices": [], "usage": usage})
        case "twice":
            events[-1]["usage"] = usage
            events.append({"choices": [], "usage": usage})
        case "each":
            for place, event in enumerate(events, 1):
                so_far = total[1] * place // len(events)
                event["usage"] = usage | {"completion_tokens": so_far, "total_tokens": total[0] + so_far}
        case _:
            return events, None
    return events, total


def _event(delta: Json, reason: str | None = None) -> Json:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }


_STYLES = ("usual", "whole", "from one", "texts", "no number", "number zero", "names again", "id again", "ids anew")


def _calls(dice: random.Random, calls: Sequence[Any]) -> list[Json]:
    """Returns the events of the calls, in one way of numbering, naming and encoding them."""
    style = dice.choice(
        ("usual", "whole", "from one", "texts", "no number", "number zero", "names again", "id again", "ids anew")
    )
    form = dice.choice(("text", "text", "text", "object", "twice", "again", "growing"))
    pieces: list[list[Json]] = []
    for place, (name, arguments) in enumerate(calls):
        raw = json.dumps(arguments, ensure_ascii=dice.random() < 0.5)
        if form == "twice":
            raw = json.dumps(raw)
        parts: list[Any] = [raw] if style == "whole" else _cut(dice, raw, 4)
        if form == "object":
            parts = [arguments]
        elif form == "again" and style != "ids anew":
            parts = [*parts, raw] if len(parts) > 1 else parts
        elif form == "growing" and style not in ("ids anew", "whole"):
            parts = ["".join(parts[: end + 1]) for end in range(len(parts))]
        pieces.append(
            [_fragment(dice, style, place, name, part, first=number == 0) for number, part in enumerate(parts)]
        )
    if style in ("usual", "from one", "texts") and dice.random() < 0.3:
        return _interleaved(dice, pieces)
    return [_event({"tool_calls": [piece]}) for call in pieces for piece in call]


def _fragment(dice: random.Random, style: str, place: int, name: str, part: Any, *, first: bool) -> Json:
    function: Json = {"arguments": part}
    fragment: Json = {"function": function, "type": "function", "index": place}
    if first or style == "names again":
        function["name"] = name
    if first or style in ("id again", "names again"):
        fragment["id"] = f"call_{place}"
    match style:
        case "from one":
            fragment["index"] = place + 1
        case "texts":
            fragment["index"] = str(place)
        case "no number":
            del fragment["index"]
        case "number zero":
            fragment["index"] = 0
        case "ids anew":
            fragment["id"] = f"call_{dice.randrange(10**9)}"
        case _:
            pass
    return fragment


def _interleaved(dice: random.Random, pieces: list[list[Json]]) -> list[Json]:
    waiting = [list(call) for call in pieces]
    events = []
    while any(waiting):
        call = dice.choice([call for call in waiting if call])
        events.append(_event({"tool_calls": [call.pop(0)]}))
    # The calls are in the order in which they begin.
    order = list(dict.fromkeys(str(event["choices"][0]["delta"]["tool_calls"][0]["index"]) for event in events))
    if order != sorted(order, key=int):
        return [_event({"tool_calls": [piece]}) for call in pieces for piece in call]
    return events


# ── the same in another form ────────────────────────────────────────────────────────────────────────────────────────


_PINGS: tuple[Json | str, ...] = (": keep-alive", "event: ping\ndata: {}", "data: null", "data:", {"choices": []})


def _recut(dice: random.Random, events: list[Json]) -> list[Json | str]:
    """Returns the events with others between them that say nothing, and some of them again."""
    result: list[Json | str] = []
    for place, event in enumerate(events):
        if dice.random() < 0.1:
            result.append(
                dice.choice((": keep-alive", "event: ping\ndata: {}", "data: null", "data:", {"choices": []}))
            )
        if dice.random() < 0.05:
            result.append({"choices": [{"index": 1, "delta": {"content": "other"}}]})
        result.append(event)
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        last = place >= len(events) - 2 and not delta.get("content") and not delta.get("tool_calls")
        if dice.random() < 0.2 and (last or delta.get("role")):
            result.append(event)
    return result


def _body(dice: random.Random, events: Sequence[Json | str], *, done: bool) -> bytes:
    texts = [event if isinstance(event, str) else _data(dice, event) for event in events]
    texts += ["data: [DONE]"] if done else []
    between = "\n\n"
    if dice.random() < 0.1:
        between = "\n" if not any("event:" in text for text in texts) else between
    body = between.join(texts) + "\n\n"
    return body.replace("\n", dice.choice(("\n", "\n", "\r\n", "\r"))).encode()


def _data(dice: random.Random, event: Json) -> str:
    return "data: " + json.dumps(event, ensure_ascii=dice.random() < 0.5).replace("\u2028", "")


def _blocks(dice: random.Random, body: bytes) -> list[bytes]:
    size = dice.choice((1, 5, 64, 1 << 20))
    return [body[place : place + size] for place in range(0, len(body), size)]


# ── harms ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _dropped(dice: random.Random, events: list[Json]) -> bytes:
    events = list(events)
    del events[dice.randrange(len(events))]
    return _body(dice, events, done=dice.random() < 0.5)


def _repeated(dice: random.Random, events: list[Json]) -> bytes:
    place = dice.randrange(len(events))
    return _body(dice, [*events[: place + 1], *events[place:]], done=True)


def _renumbered(dice: random.Random, events: list[Json]) -> bytes:
    events = deepcopy(events)
    for event in events:
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                if dice.random() < 0.5:
                    call["index"] = dice.choice((None, 0, 1, 7, "0"))
    return _body(dice, events, done=True)


def _cut_off(dice: random.Random, events: list[Json]) -> bytes:
    """Cuts before the finish reason, which is in one of the last events."""
    finish = next(
        place for place, event in enumerate(events) if event["choices"] and event["choices"][0]["finish_reason"]
    )
    body = _body(dice, events[:finish], done=False) if finish else b""
    return body[: dice.randrange(len(body) + 1)] if body else b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


def _byte(dice: random.Random, events: list[Json]) -> bytes:
    """Changes a byte, but not the key of arguments: a call without it is one of a tool that needs none."""
    body = _body(dice, events, done=True)
    while True:
        place = dice.randrange(len(body))
        changed = body[:place] + bytes([dice.randrange(256)]) + body[place + 1 :]
        if changed.count(b'"arguments"') == body.count(b'"arguments"'):
            return changed


def _failed(dice: random.Random, events: list[Json]) -> bytes:
    """Puts an error, in one of the usual forms, in the middle."""
    error: tuple[Json | str, ...] = (
        {"error": "boom"},
        {"error": {"message": "boom", "code": 500}},
        {"choices": [], "error": {"message": "boom"}},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]},
        'event: error\ndata: {"message": "boom"}',
        {"object": "error", "message": "boom"},
    )
    place = dice.randrange(len(events))
    return _body(dice, [*events[:place], dice.choice(error)], done=dice.random() < 0.5)


_HARMS: Mapping[str, Callable[[random.Random, list[Json]], bytes]] = {
    "dropped": _dropped,
    "repeated": _repeated,
    "renumbered": _renumbered,
    "cut off": _cut_off,
    "byte": _byte,
    "failed": _failed,
}
