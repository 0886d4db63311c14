"""Answers that grow in an AI card, and cards with buttons.

A card is created and delivered with an id of ours, and its text is replaced with a key: both may be sent again.
So an answer whose card exists is delivered once, also after a crash.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import structlog
from cachetools import FIFOCache

from channels.dingtalk import translation
from channels.dingtalk.api import Api, Waiting, is_gone
from channels.markup import dingtalk as markup
from core.chat.facts import Button, Target
from core.chat.port import ChatGone, Content, RateLimited, Rejected, unfinished
from core.errors import Invalid, Unavailable

COOL_DOWN_SECONDS = 1800.0
"""Seconds for which answers go without cards after repeated refusals."""
SHORT_COOL_DOWN_SECONDS = 60.0
"""The same for one chat in which calls got no answer."""
FAILURES = 3
"""In a row: refusals over all answers of the account and calls without an answer in one chat, after which cards pause,
and calls of one card, after which its stream counts as expired."""
ACCOUNT = ""
"""Stands for all chats."""
DUPLICATE = "duplicate"
"""Part of the code by which the platform refuses an id that a card has already. Whether it does so, or answers again as
at first, is not documented."""
CARDS = 1000
CONTENT = "content"
"""The variable of the AI card's template (DeerFlow's name)."""
BUTTONS = "sys_full_json_obj"
"""The variable with the buttons in DingTalk's own templates. What another template does with a variable that it lacks
is not documented, so the AI card gets it only where the account's settings say that it has it.
"""

log = structlog.get_logger(__name__)
Post = Callable[[Target, Content, str], Awaitable[str]]
Settle = Callable[[Target], Awaitable[None]]


class Cards:
    """The cards of an account. `template` and `button_template` are ids of templates, empty if there are none.
    `has_stop`: that of growing answers shows buttons, too.
    """

    def __init__(
        self, api: Api, robot_code: str, template: str, button_template: str, *, has_stop: bool = False
    ) -> None:
        self._api = api
        self._has_stop = has_stop
        self._robot_code = robot_code
        self._template = template
        self.button_template = button_template
        self._failures: FIFOCache[str, int] = FIFOCache(CARDS)
        """In a row, by chat."""
        self._off_until: FIFOCache[str, float] = FIFOCache(CARDS)
        self._refusals: FIFOCache[str, int] = FIFOCache(CARDS)
        """Calls in a row that streams did not answer, by card."""

    def are_usable(self, chat: str) -> bool:
        now = time.monotonic()
        return bool(self._template) and all(now >= self._off_until.get(place, 0.0) for place in (ACCOUNT, chat))

    def failed(self, error: Exception, chat: str) -> None:
        """Counts a failure; after some in a row, answers go without cards for a while. A refusal, and a limit of the
        rate, are about the app, so about all chats; a call without an answer is about one.
        """
        general = isinstance(error, Invalid | RateLimited)
        place, seconds = (ACCOUNT, COOL_DOWN_SECONDS) if general else (chat, SHORT_COOL_DOWN_SECONDS)
        self._failures[place] = self._failures.get(place, 0) + 1
        if self._failures[place] >= FAILURES:
            self._failures[place], self._off_until[place] = 0, time.monotonic() + seconds
            log.warning("cards paused", chat=place, seconds=seconds, reason=str(error))

    def worked(self, chat: str) -> None:
        self._failures.pop(ACCOUNT, None)
        self._failures.pop(chat, None)

    async def begin(self, target: Target, id_: str, key: str) -> None:
        """Delivers an empty AI card. Idempotent. The empty text ends the skeleton that it shows at first. `key`: that
        of the draft, whose run the card's button stops.
        """
        growing = unfinished("", "", key)
        stop = _buttons(growing.plan, target, growing.buttons) if self._has_stop else {}
        await self._deliver(target, id_, self._template, {CONTENT: "", **stop})
        await self.stream(id_, "")

    async def stream(self, id_: str, content: str, *, last: bool = False) -> None:
        """Replaces the text of an AI card; nothing more after `last`. Idempotent."""
        body = {
            "outTrackId": id_,
            "guid": _digest(f"{last}\n{content}"),
            "key": CONTENT,
            "content": content,
            "isFull": True,
            "isFinalize": last,
            "isError": False,
        }
        try:
            await self._api.call("PUT", "/v1.0/card/streaming", body, idempotent=True)
        except RateLimited:
            raise
        except Unavailable:
            self._refusals[id_] = self._refusals.get(id_, 0) + 1
            raise
        self._refusals.pop(id_, None)

    async def ask(self, target: Target, content: Content, key: str) -> str:
        """Delivers a card with buttons and returns its id. Idempotent."""
        id_ = f"sika-question-{_digest(key)}"
        await self._deliver(target, id_, self.button_template, _question(target, content))
        return id_

    async def change(self, target: Target, id_: str, content: Content) -> None:
        """Replaces the text of a card that was delivered, and the buttons of one that has some. Idempotent."""
        if is_question(id_):
            await self._update(id_, _question(target, content))
        else:
            await self._update(id_, {CONTENT: markup.card(translation.numbered(content.text, content.buttons))})

    async def _deliver(self, target: Target, id_: str, template: str, data: Mapping[str, str]) -> None:
        path = "/v1.0/card/instances/createAndDeliver"
        body: dict[str, Any] = {
            "cardTemplateId": template,
            "outTrackId": id_,
            "cardData": {"cardParamMap": data},
            "callbackType": "STREAM",
            "userIdType": 1,
        }
        if target.kind == "group":
            body["openSpaceId"] = f"dtv1.card//IM_GROUP.{target.chat}"
            body["imGroupOpenSpaceModel"] = {"supportForward": True}
            body["imGroupOpenDeliverModel"] = {"robotCode": self._robot_code}
        else:
            body["openSpaceId"] = f"dtv1.card//IM_ROBOT.{target.chat}"
            body["imRobotOpenSpaceModel"] = {"supportForward": True}
            body["imRobotOpenDeliverModel"] = {"spaceType": "IM_ROBOT", "robotCode": self._robot_code}
        try:
            answer = await self._api.call("POST", path, body, idempotent=True)
        except Rejected as error:
            if DUPLICATE not in str(error).lower():
                raise
            return  # the id is ours and derives from the answer: the card is there, though nobody told us
        result = answer.get("result")
        for delivery in result.get("deliverResults", []) if isinstance(result, dict) else []:
            if delivery.get("success") is not True:
                reason = str(delivery.get("errorMsg", ""))[:300]
                raise (ChatGone if is_gone(reason) else Rejected)(f"DingTalk {path}: not delivered: {reason}")

    async def _update(self, id_: str, data: Mapping[str, str]) -> None:
        options = {"updateCardDataByKey": True}
        body = {"outTrackId": id_, "cardData": {"cardParamMap": data}, "cardUpdateOptions": options}
        await self._api.call("PUT", "/v1.0/card/instances", body, idempotent=True)

    async def finish(self, id_: str, content: Content) -> None:
        """Replaces the text of an AI card for good, also where its stream has expired. Idempotent.

        Raises `Unavailable` for the first refusals: a stream that has expired or was finished is refused by a 500, as
        any call is while a gateway is broken. Changed by another way too soon, the card would look unfinished.
        """
        text = markup.card(translation.numbered(content.text, content.buttons))
        try:
            await self.stream(id_, text, last=True)
        except RateLimited:
            raise
        except Unavailable:
            if self._refusals.get(id_, 0) < FAILURES:
                raise
            await self._update(id_, {CONTENT: text})
        except Rejected:
            await self._update(id_, {CONTENT: text})
        if self._has_stop:
            with suppress(Rejected):  # it then says that nothing is at work
                await self._update(id_, {BUTTONS: json.dumps({"msgButtons": []})})


class Draft:
    """An answer in an AI card. Without cards nothing is shown, and the answer is posted as one message."""

    def __init__(self, cards: Cards, post: Post, settle: Settle, target: Target, key: str, message: str) -> None:
        self._cards = cards
        self._post = post
        self._settle = settle
        self._target = target
        self._key = key
        self._id = message or f"sika-answer-{_digest(key)}"
        self._begun = bool(message)
        self._unsure = False
        """The card may have been delivered: no answer came."""
        self._refused = False
        self._shown: str | None = None
        self._text = ""

    @property
    def message(self) -> str:
        return self._id if self._begun else ""

    async def show(self, text: str, status: str) -> None:
        content = _growing(text, status)
        if self._refused or not self._cards.are_usable(self._target.chat) or content == self._shown:
            return
        try:
            await self._begin()
            await self._cards.stream(self._id, content)
        except Waiting:
            raise
        except Unavailable as error:
            self._cards.failed(error, self._target.chat)
            raise
        except Invalid as error:  # the end of the answer tries something else
            self._cards.failed(error, self._target.chat)
            self._refused = True
            log.warning("card refused", card=self._id, reason=str(error))
        else:
            self._cards.worked(self._target.chat)
            self._shown, self._text = content, text

    async def finish(self, content: Content, key: str) -> str:
        """Idempotent if there is a card. Without one the answer is posted, once."""
        if not self._begun and self._unsure and self._cards.are_usable(self._target.chat):
            try:
                await self._begin()
            except Invalid as error:  # so nobody sees it
                self._cards.failed(error, self._target.chat)
        if self._begun:
            message = await self._finish(content, key)
        else:
            message = await self._post(self._target, content, key)
        await self._settle(self._target)
        return message

    async def _finish(self, content: Content, key: str) -> str:
        """Ends the card with an answer. Buttons need a card of their own, which comes after it."""
        if content.buttons and self._cards.button_template:
            with suppress(Rejected):
                message = await self._cards.ask(self._target, content, key)
                await self.drop()
                return message
        await self._cards.finish(self._id, content)
        return self._id

    async def drop(self) -> None:
        """Ends the card as it is: a robot cannot take one back."""
        if self._begun:
            await self._cards.finish(self._id, Content(self._text[: markup.LIMIT] or "…"))

    async def _begin(self) -> None:
        if self._begun:
            return
        try:
            await self._cards.begin(self._target, self._id, self._key)
        except RateLimited:
            raise
        except Unavailable:
            self._unsure = True
            raise
        self._begun = True


def is_card(message: str) -> bool:
    """Returns whether a message is a card, which can be changed later."""
    return message.startswith("sika-")


def is_question(message: str) -> bool:
    return message.startswith("sika-question-")


def _question(target: Target, content: Content) -> dict[str, str]:
    """Returns the variables of the card with buttons: those of the template that the SDK's own helper uses."""
    return {
        "markdown": markup.card(content.text),
        "tips": content.status,
        **_buttons(content.plan, target, content.buttons),
    }


def _buttons(plan: str, target: Target, choices: tuple[Button, ...]) -> dict[str, str]:
    """Returns the variable with buttons."""
    return {BUTTONS: json.dumps({"msgButtons": translation.buttons(plan, target, choices)}, ensure_ascii=False)}


def _growing(text: str, status: str) -> str:
    if len(text) > markup.LIMIT:
        start = text[: markup.LIMIT]
        text = f"{start.rpartition(chr(10))[0] or start}\n\n…"
    shown = markup.card(text)
    line = markup.card("> " + " ".join(status.split())) if status.strip() else ""
    return "\n\n".join(piece for piece in (shown, line) if piece)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
