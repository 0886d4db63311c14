"""The writer's side of previews, on a real bus: coalesced, in order, complete; harmless when lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import anyio
import pytest
from nats.aio.msg import Msg

from core.bus.connection import Bus
from core.bus.errors import STREAM_NOT_FOUND, ApiError
from core.config.redaction import redactor
from core.events import Json
from core.pace import LONGEST_SECONDS, Pace
from core.runs import previews
from core.runs.previews import Part, Preview, Previewer, Progress, Pump, Reader, decode, line_of, rest_of
from core.runtime import system
from core.thread.messages import text_of
from tests.support.nats import DEADLINE, bus_on, eventually, fresh, own, running_tasks
from tests.support.records import ai, call

RUN = "r1"


class Heard:
    """What comes over the bus for one run."""

    def __init__(self) -> None:
        self.previews: list[Preview] = []
        self.progress: list[Progress] = []
        self._more = asyncio.Event()

    async def on_message(self, msg: Msg) -> None:
        found = decode(msg.data)
        if isinstance(found, Preview):
            self.previews.append(found)
        else:
            self.progress.append(found)
        self._more.set()

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.previews)

    async def until(self, text: str) -> None:
        with anyio.fail_after(DEADLINE):
            while self.text != text:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def heard(bus: Bus) -> Heard:
    heard = Heard()
    await bus.subscribe(bus.names.tok(RUN), heard.on_message)
    await bus.nc.flush()
    return heard


@pytest.fixture
async def pump(bus: Bus) -> AsyncIterator[Pump]:
    pump = Pump(bus)
    async with running_tasks(pump.run):
        yield pump


def contiguous(found: Sequence[Preview]) -> bool:
    offset = 0
    for preview in found:
        if preview.offset != offset or not preview.text:
            return False
        offset += len(preview.text)
    return True


async def test_the_text_arrives_in_order_and_in_fewer_pieces(pump: Pump, heard: Heard) -> None:
    words = [f"word{n} " for n in range(400)]
    message = pump.message(RUN, "m", after=0)
    for word in words:
        await message.add("text", word)
    await heard.until("".join(words))
    assert contiguous(heard.previews)
    assert len(heard.previews) < 20
    assert {(p.message, p.part) for p in heard.previews} == {("m", "text")}


async def test_the_first_piece_is_sent_at_once_and_the_rest_by_the_timer(
    pump: Pump, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "FLUSH_SECONDS", 0.3)
    message = pump.message(RUN, "m", after=0)
    for text in ("a", "b", "c"):
        await message.add("text", text)
    await heard.until("abc")  # the test does nothing more: the pump does
    assert [p.text for p in heard.previews] == ["a", "bc"]


async def test_much_text_does_not_wait(bus: Bus, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "FLUSH_SECONDS", 3600.0)
    message = Pump(bus).message(RUN, "m", after=0)  # nobody runs the pump
    await message.add("text", "a")
    await message.add("text", "b" * previews.FLUSH_CHARACTERS)
    await heard.until("a" + "b" * previews.FLUSH_CHARACTERS)


Stream = list[tuple[Part, str, dict[str, Any]]]


async def streamed(message: Previewer, stream: Stream) -> None:
    for part, text, options in stream:
        await message.add(part, text, **options)
    await message.flush()


async def test_parts_and_calls(pump: Pump, heard: Heard) -> None:
    """As a model streams: a call begins with its id and name, and no text yet."""
    calls = [call("c1", "bash", command="ls"), call("c2", "bash", command="pwd")]
    message: Json = ai("m", "Let me see.", calls) | {"additional_kwargs": {"reasoning_content": "Hm. Hm."}}
    stream: Stream = [
        ("reasoning", "Hm.", {}),
        ("reasoning", " Hm.", {}),
        ("text", "Let me", {}),
        ("text", " see.", {}),
        ("call", "", {"index": 0, "call_id": "c1", "name": "bash"}),
        ("call", '{"comm', {"index": 0}),
        ("call", 'and":"ls"}', {"index": 0}),
        ("call", "", {"index": 1, "call_id": "c2", "name": "bash"}),
        ("call", '{"command":"pwd"}', {"index": 1}),
    ]
    await streamed(pump.message(RUN, "m", after=0), stream)
    line = line_of(message, {})
    await heard.until("".join(p.text for p in line))
    assert contiguous(heard.previews)
    reader = Reader()
    seen = [new for p in heard.previews if (new := reader.take(p))]
    assert list(rest_of(line, reader.offset)) == []
    assert [(p.call_id, p.name, p.index) for p in seen if p.call_id] == [("c1", "bash", 0), ("c2", "bash", 1)]
    for part in ("reasoning", "text", "call"):
        assert "".join(p.text for p in seen if p.part == part) == "".join(p.text for p in line if p.part == part)


OTHER_ORDERS: dict[str, tuple[Stream, Json]] = {
    "text after a call": (
        [("text", "one ", {}), ("call", '{"a":1}', {"index": 0, "call_id": "c1", "name": "t"}), ("text", "two", {})],
        ai("m", "one two", [call("c1", "t", a=1)]),
    ),
    "reasoning after text": (
        [("reasoning", "hm ", {}), ("text", "one ", {}), ("reasoning", "hm", {}), ("text", "two", {})],
        ai("m", "one two") | {"additional_kwargs": {"reasoning_content": "hm hm"}},
    ),
    "calls in turns": (
        [
            ("call", '{"a":', {"index": 0, "call_id": "c1", "name": "t"}),
            ("call", '{"b":', {"index": 1, "call_id": "c2", "name": "t"}),
            ("call", "1}", {"index": 0}),
            ("call", "2}", {"index": 1}),
        ],
        ai("m", "", [call("c1", "t", a=1), call("c2", "t", b=2)]),
    ),
}


@pytest.mark.parametrize("name", OTHER_ORDERS)
async def test_a_model_with_another_order(pump: Pump, heard: Heard, name: str) -> None:
    """Previews stop, the fact brings the rest: for each part the text must be what the message says."""
    stream, message = OTHER_ORDERS[name]
    await streamed(pump.message(RUN, "m", after=0), stream)
    await pump.progress(RUN, Progress(call_id="c", name="t", text="end"))

    async def all_heard() -> bool:
        return bool(heard.progress)

    await eventually(all_heard)
    line, reader = line_of(message, {}), Reader()
    seen: list[tuple[str, int, str]] = []
    for preview in heard.previews:
        if new := reader.take(preview):
            seen.append((new.part, new.index, new.text))
    seen += [(piece.part, piece.index, piece.text) for _, piece in rest_of(line, reader.offset)]
    for piece in line:
        assert "".join(text for part, index, text in seen if (part, index) == (piece.part, piece.index)) == piece.text


class Congested(Pump):
    """A connection that makes publishers wait, as one with a full buffer does."""

    async def publish(self, subject: str, preview: Preview | Progress) -> None:
        await asyncio.sleep(0)
        await super().publish(subject, preview)


async def test_flushes_at_once_keep_the_offsets(bus: Bus, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pump's timer flushes while the model's stream does."""
    monkeypatch.setattr(previews, "FLUSH_SECONDS", 3600.0)
    message = Congested(bus).message(RUN, "m", after=0)
    await message.add("reasoning", "0")
    await message.add("reasoning", "a" * 3)
    await message.add("text", "b" * 3)
    timer = asyncio.ensure_future(message.flush())
    await asyncio.sleep(0)  # it has begun
    await message.add("text", "c" * previews.FLUSH_CHARACTERS)
    await timer
    expected = {0: "0", 1: "aaa", 4: "bbb", 7: "c" * previews.FLUSH_CHARACTERS}

    async def all_heard() -> bool:
        return len(heard.previews) == 4

    await eventually(all_heard)
    assert {p.offset: p.text for p in heard.previews} == expected


async def test_messages_of_a_run_do_not_mix(pump: Pump, heard: Heard) -> None:
    one, two = pump.message(RUN, "m1", after=0), pump.message(RUN, "m2", after=0)
    for n in range(50):
        await one.add("text", f"{n},")
        await two.add("text", f"{-n},")
    await one.flush()
    await two.flush()

    async def complete() -> bool:
        return len(heard.text) == sum(len(f"{n},{-n},") for n in range(50))

    await eventually(complete)
    for name, sign in (("m1", 1), ("m2", -1)):
        mine = [p for p in heard.previews if p.message == name]
        assert contiguous(mine)
        assert "".join(p.text for p in mine) == "".join(f"{sign * n}," for n in range(50))


async def test_progress(pump: Pump, heard: Heard) -> None:
    await pump.progress(RUN, Progress(call_id="c1", name="bash", text="½"))

    async def came() -> bool:
        return bool(heard.progress)

    await eventually(came)
    assert heard.progress == [Progress(call_id="c1", name="bash", text="½")]


async def stored(bus: Bus) -> int:
    try:
        info = await bus.api(f"STREAM.INFO.{bus.names.stream('tok')}")
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return -1
        raise
    return int(info["state"]["messages"])


async def test_a_piece_that_fits_no_message_costs_only_itself(pump: Pump, heard: Heard) -> None:
    big, small = (pump.message(RUN, name, after=1) for name in ("big", "small"))
    await big.add("text", "x" * 2_000_000)
    await big.add("text", "y")
    await small.add("text", "hello")
    await heard.until("hello")


async def test_who_comes_late_finds_them_in_the_stream(pump: Pump, bus: Bus) -> None:
    await pump.message(RUN, "m", after=0).add("text", "hello")

    async def there() -> bool:
        return await stored(bus) == 1

    await eventually(there)


async def test_a_server_that_is_gone_costs_only_the_previews(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        message = Pump(bus).message(fresh().id, "m", after=0)
        await nats.kill()
        for _ in range(10):
            await message.add("text", "x" * 600)
        await nats.restart()
        await eventually(lambda: bus.api("INFO"))


async def test_the_stream_is_there_again_after_a_restart(tmp_path: Path) -> None:
    """A process sees to it, as soon as it is connected again."""
    async with (
        own(tmp_path / "nats") as nats,
        system.start(nats.endpoint(), tmp_path / "views.db", lease_seconds=2, slots=1) as running,
    ):
        await nats.kill()
        await nats.restart()

        async def there() -> bool:
            return await stored(running.bus) >= 0

        await eventually(there)
        await running.pump.message(RUN, "m", after=0).add("text", "hello")

        async def kept() -> bool:
            return await stored(running.bus) == 1

        await eventually(kept)


KEY, OTHER = "sk-abc/def+12345", "xyz-other-secret-1"


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("parallel", [False, True], ids=["calls one by one", "calls in turn"])
async def test_a_secret_is_in_no_preview(
    bus: Bus, heard: Heard, size: int, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the model's stream cuts it; and previews stay a beginning of the message that is recorded."""
    monkeypatch.setattr(previews, "FLUSH_SECONDS", -1.0)
    redactor.add(KEY, OTHER)
    reasoning, text = f"It is {KEY}, or s", f"sk: {OTHER}{KEY} and sk-ab"
    calls = [{"command": f"echo {KEY}s"}, {"command": f"x {OTHER}"}]
    args = [previews.call_text(one) for one in calls]
    pieces: list[tuple[Part, str, int]] = [("reasoning", one, 0) for one in cuts(reasoning, size)]
    pieces += [("text", one, 0) for one in cuts(text, size)]
    of_calls = [[("call", one, index) for one in cuts(arg, size)] for index, arg in enumerate(args)]
    mixed = [one for pair in zip_longest(*of_calls) for one in pair if one is not None]
    message = Pump(bus).message(RUN, "m", after=0)
    for part, piece, index in [*pieces, *(mixed if parallel else [*of_calls[0], *of_calls[1]])]:
        await message.add(part, piece, index=index)
    said = ai("m", text, [call(f"c{n}", **one) for n, one in enumerate(calls)])
    recorded = redactor.value({**said, "additional_kwargs": {"reasoning_content": reasoning}})
    await bus.nc.flush()
    line = line_of(recorded, {}, message.order)
    shown = "".join(one.text for _, one in rest_of(line, 0))

    async def all_heard() -> bool:
        return len(heard.text) == message._offset

    await eventually(all_heard)
    assert shown.startswith(heard.text)
    assert len(shown) - len(heard.text) < len(KEY) + len(OTHER)
    for secret in (KEY, OTHER):
        assert secret not in heard.text
        assert all(secret not in one for one in (shown, *texts_by_part(heard)))


def cuts(text: str, size: int) -> list[str]:
    return [text[n : n + size] for n in range(0, len(text), size)]


def texts_by_part(heard: Heard) -> list[str]:
    """What a client puts together of each part."""
    places = {(one.part, one.index) for one in heard.previews}
    return ["".join(one.text for one in heard.previews if (one.part, one.index) == place) for place in places]


def test_a_block_without_a_text_is_not_the_word_none() -> None:
    content = ["Hi", {"type": "text", "text": None}, {"type": "image_url"}, {"type": "text", "text": " there"}, None]
    assert text_of(content) == "Hi there"


def test_a_busy_process_gathers_text() -> None:
    """The busier the loop's thread was, the longer; a moment changes little, and with little to do nothing is."""
    busy = Pace()
    seen = []
    for part in (0.05, 0.3, 0.4, 1.0):
        for _ in range(50):
            busy.note(part)
        seen.append(busy.seconds)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(LONGEST_SECONDS)
    before = busy.seconds
    busy.note(0.0)
    assert 0 < busy.seconds <= before
