"""DingTalk's implementation of the port."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio

from channels.chat.reconnecting import FIRST_PAUSE
from channels.chat.rest import check_transfer
from channels.chat.sockets import PING_SECONDS
from channels.dingtalk import card, stream, translation
from channels.dingtalk.api import Api, Forbidden
from channels.dingtalk.sign import Sign
from channels.dingtalk.traits import TRAITS
from channels.markup import dingtalk as markup
from core.chat.facts import Attachment, Target
from core.chat.port import (
    ChatGone,
    Content,
    CredentialsDead,
    Finding,
    RateLimited,
    Receive,
    Rejected,
    Report,
)
from core.chat.sizes import too_large
from core.errors import Invalid, Unavailable

LARGEST_INCOMING = 50 << 20
"""Bytes (DeerFlow's limit)."""
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")
FLOW_CONTROL_SECONDS = 10.0
"""The platform does not say for how long it holds a person's messages back."""
MARKDOWN = "sampleMarkdown"
UNNAMED = "Sika"
"""The title of a message that has no words."""
GROUP_SEND = "/v1.0/robot/groupMessages/send"
PRIVATE_SEND = "/v1.0/robot/oToMessages/batchSend"


def connect(settings: Mapping[str, Any]) -> DingTalk:
    """Returns an account. Raises `Invalid` for settings without credentials."""
    for credential in TRAITS.credentials:
        if not isinstance(settings.get(credential.key), str) or not settings[credential.key].strip():
            raise Invalid(f"channels.dingtalk.{credential.key}: missing; it is the {credential.label} of the app")
    if not isinstance(settings.get("stop_button", False), bool):
        raise Invalid("channels.dingtalk.stop_button: expected true or false")
    return DingTalk(settings)


class DingTalk:
    """One app. `ping_seconds` and `pause`: see `stream.Stream`."""

    def __init__(
        self, settings: Mapping[str, Any], *, ping_seconds: float = PING_SECONDS, pause: float = FIRST_PAUSE
    ) -> None:
        client_id = str(settings["client_id"]).strip()
        secret = str(settings["client_secret"]).strip()
        self._robot_code = str(settings.get("robot_code") or client_id)
        self._api = Api(client_id, secret, str(settings.get("base_url", "")), str(settings.get("upload_url", "")))
        template = str(settings.get("card_template_id") or "")
        button_template = str(settings.get("button_template_id") or "")
        has_stop = bool(settings.get("stop_button"))
        self._cards = card.Cards(self._api, self._robot_code, template, button_template, has_stop=has_stop)
        # Questions are cards then, and cards can be changed; a message that is none is refused by `edit`.
        self.traits = TRAITS._replace(edits_are_free=bool(button_template))
        self._has_cards = bool(template or button_template)
        self._sign = Sign(self._api, self._robot_code)
        self._stream = stream.Stream(self._api, self._sign.received, ping_seconds=ping_seconds, pause=pause)

    async def check(self) -> Sequence[Finding]:
        try:
            await self._api.token.get()
        except CredentialsDead as error:
            advice = "Copy Client ID and Client Secret anew from the app's page “Credentials & Basic Information”."
            return [Finding(False, str(error), advice)]
        except Unavailable as error:
            return [Finding(False, str(error), "Is the network open to api.dingtalk.com?")]
        findings = [Finding(True, "DingTalk accepts client_id and client_secret")]
        try:
            await self._api.open_stream([{"type": "CALLBACK", "topic": stream.ROBOT}])
            findings.append(Finding(True, "the stream connection can be opened"))
        except Unavailable as error:
            findings.append(Finding(False, str(error), "Add the bot to the app, in Stream Mode, and publish it."))
        probes = [("POST", PRIVATE_SEND, "send messages")]
        if self._has_cards:
            probes.append(("POST", "/v1.0/card/instances/createAndDeliver", "create cards"))
            probes.append(("PUT", "/v1.0/card/streaming", "write into cards"))
        return [*findings, *[await self._probe(method, path, what) for method, path, what in probes]]

    async def _probe(self, method: str, path: str, what: str) -> Finding:
        """Calls with no content: DingTalk looks at the permission first, and refuses the call in any case."""
        try:
            await self._api.call(method, path, {}, idempotent=True)
        except Forbidden as error:
            advice = f"Grant {', '.join(error.scopes)} on the app's page “Permissions”."
            return Finding(False, f"the bot may not {what}", advice)
        except Unavailable as error:
            return Finding(False, f"whether the bot may {what} is not known: {error}", "Try again later.")
        except Invalid:
            pass
        return Finding(True, f"the bot may {what}")

    async def listen(self, receive: Receive, report: Report) -> None:
        await self._stream.listen(receive, report)

    def parts(self, text: str) -> Sequence[str]:
        # 3 500 characters of four bytes are less than the 15 000 bytes that `msgParam` may have (documentation of
        # `groupMessages/send`).
        return markup.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> card.Draft:
        return card.Draft(self._cards, self._post, self._sign.settle, target, key, message)

    async def post(self, target: Target, content: Content, key: str) -> str:
        message = await self._post(target, content, key)
        await self._sign.settle(target)
        return message

    async def _post(self, target: Target, content: Content, key: str) -> str:
        if content.buttons and self._cards.button_template:
            try:
                return await self._cards.ask(target, content, key)
            except Rejected:
                pass  # without the template or the permission, as numbered options
        return await self._send(target, MARKDOWN, _markdown(_plain(content)))

    async def edit(self, target: Target, message: str, content: Content) -> None:
        if not card.is_card(message):
            raise Rejected("DingTalk cannot change a message that is not a card")
        await self._cards.change(target, message, content)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        raise Rejected("DingTalk cannot be asked for messages of a bot")

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        size = (await anyio.Path(file).stat()).st_size
        if not size:
            raise Rejected(f"{name}: it is empty, and DingTalk takes no such files")
        if size > TRAITS.largest_file:
            raise too_large(name, size, TRAITS.largest_file)
        suffix = Path(name).suffix.lower()
        if suffix in IMAGES:
            medium = await self._api.upload(file, name, "image")
            return await self._send(target, "sampleImageMsg", _json({"photoURL": medium}))
        medium = await self._api.upload(file, name, "file")
        content = {"mediaId": medium, "fileName": name, "fileType": suffix.lstrip(".") or "file"}
        return await self._send(target, "sampleFile", _json(content))

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        if not attachment.id:
            raise Rejected(f"{attachment.name}: DingTalk sent no file")
        body = {"downloadCode": attachment.id, "robotCode": self._robot_code}
        answer = await self._api.call("POST", "/v1.0/robot/messageFiles/download", body, idempotent=True)
        url = answer.get("downloadUrl")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise Rejected(f"{attachment.name}: DingTalk has no address for it any more")
        transfer = await self._api.rest.download(url, attachment, into, min(limit, LARGEST_INCOMING))
        check_transfer(transfer, "the file's host", "the file's address is not valid any more")

    async def whisper(self, target: Target, text: str) -> None:
        """Writes to the person privately: DingTalk has nothing else that only one person sees."""
        if not target.sender:
            raise Rejected("it is not known to whom")
        alone = Target(target.sender, sender=target.sender)
        await self._send(alone, MARKDOWN, _markdown(text))

    async def working(self, target: Target, on: bool) -> None:
        await self._sign.show(target, on)

    async def close(self) -> None:
        await self._api.rest.close()

    async def _send(self, target: Target, key: str, parameter: str) -> str:
        """Sends a message once. Returns the key by which DingTalk knows it."""
        body: dict[str, Any] = {"robotCode": self._robot_code, "msgKey": key, "msgParam": parameter}
        if target.kind == "group":
            answer = await self._api.call("POST", GROUP_SEND, {**body, "openConversationId": target.chat})
        else:
            answer = await self._api.call("POST", PRIVATE_SEND, {**body, "userIds": [target.chat]})
            if target.chat in (answer.get("invalidStaffIdList") or ()):
                raise ChatGone(f"DingTalk knows nobody with the id {target.chat!r}")
            if target.chat in (answer.get("flowControlledStaffIdList") or ()):
                raise RateLimited(f"DingTalk holds back messages to {target.chat!r}", FLOW_CONTROL_SECONDS)
        return str(answer.get("processQueryKey") or "")


def _plain(content: Content) -> str:
    text = translation.numbered(content.text, content.buttons)
    return f"{text}\n\n> {content.status}" if content.status else text


def _markdown(source: str) -> str:
    """Returns the parameter of a `sampleMarkdown` message."""
    return _json({"title": markup.title(source) or UNNAMED, "text": markup.markdown(source)})


def _json(value: Mapping[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)
