"""The stream connection: DingTalk's frames over a websocket, each answered when its message is in the log.

While the log is out of reach a message is kept here and tried again, as DingTalk does not promise to deliver it a
second time. What finds its lane full is not answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
import yarl
from cachetools import FIFOCache

from channels.chat.lanes import Lanes, custody
from channels.chat.reconnecting import Ended, stay_connected
from channels.chat.sockets import Socket, connected
from channels.dingtalk import translation
from channels.dingtalk.api import Api
from core.chat.facts import ChatReceived
from core.chat.port import Receive, Report

ROBOT = "/v1.0/im/bot/messages/get"
CARD = "/v1.0/card/instances/callback"
PEOPLE = 2000

log = structlog.get_logger(__name__)


class Stream:
    """Listens for one account. `on_message` is called with the id of each message before it is in the log.

    `pause`: seconds before the first reconnection; doubled for each failure in a row.
    """

    def __init__(self, api: Api, on_message: Callable[[str], None], *, ping_seconds: float, pause: float) -> None:
        self._api = api
        self._on_message = on_message
        self._people: FIFOCache[str, str] = FIFOCache(PEOPLE)
        """Names of people, as of their newest messages."""
        self._ping_seconds = ping_seconds
        self._pause = pause

    async def listen(self, receive: Receive, report: Report) -> None:
        """Connects again and again, until cancelled. Raises `CredentialsDead`."""
        async with custody("dingtalk", receive) as lanes:
            connection = partial(self._connection, lanes, report)
            await stay_connected("dingtalk", connection, report, first_pause=self._pause)

    async def _connection(self, lanes: Lanes[ChatReceived], report: Report) -> Ended:
        """Connects, and returns when the connection has ended. Raises `CredentialsDead` and `Unavailable`."""
        place = await self._api.open_stream([{"type": "CALLBACK", "topic": topic} for topic in (ROBOT, CARD)])
        url = yarl.URL(str(place["endpoint"])).update_query(ticket=str(place["ticket"]))
        session = self._api.rest.session()
        async with connected(session, url, "the stream", report, ping_seconds=self._ping_seconds) as socket:
            async for frame in socket.frames():
                socket.greet()
                try:
                    await self._take(frame, socket, lanes)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    log.warning("frame not understood", reason=type(error).__name__)
            return socket.ended

    async def _take(self, frame: Mapping[str, Any], socket: Socket, lanes: Lanes[ChatReceived]) -> None:
        kind, topic, data = frame["type"], frame["headers"].get("topic"), json.loads(frame.get("data") or "{}")
        if kind == "SYSTEM":
            await socket.send(_answer(frame, data))
            if topic == "disconnect":
                socket.end("the platform asked to reconnect")
        if kind != "CALLBACK":
            return
        event, answer = None, partial(socket.send, _answer(frame, {"response": {}}))
        try:
            event = translation.press(data) if topic == CARD else translation.message(data, self._people)
        except msgspec.ValidationError as error:
            log.warning("frame not understood", topic=topic, reason=str(error))
        if event is None:
            return await answer()
        if topic == ROBOT:
            self._on_message(event.message)
        lanes.offer(event.target.chat, event, answer)


def _answer(frame: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Returns the acknowledgement of a frame. `data`: for a pressed button what its card shows at once: no change."""
    headers = {"messageId": frame["headers"]["messageId"], "contentType": "application/json"}
    return {"code": 200, "headers": headers, "message": "OK", "data": json.dumps(data)}
