"""Files out and in: kinds, limits, web pages, expired handles."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.telegram.platform import Telegram
from channels.telegram.traits import DOWNLOAD_LIMIT, PHOTO_LIMIT, UPLOAD_LIMIT
from core.chat.facts import Attachment, Target
from core.chat.port import FateUnknown, File, RateLimited, Rejected
from core.errors import Unavailable
from tests.channels.telegram.conftest import Account
from tests.channels.telegram.server import TelegramServer

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 100


def _written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


async def test_a_file_is_posted_as_its_kind(
    server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path
) -> None:
    chart = _written(tmp_path, "a", PNG)
    table = _written(tmp_path, "b", b"a,b\n1,2\n")
    large = _written(tmp_path, "c", PNG + b"0" * PHOTO_LIMIT)
    for path, name in ((chart, "chart.png"), (table, "größe 表.csv"), (large, "large.png")):
        assert await platform.upload(team, path, name, "k")
    shown = server.seen(int(team.chat))
    assert [(message.kind, message.file) for message in shown] == [
        ("photo", "chart.png"),
        ("document", "größe 表.csv"),
        ("document", "large.png"),
    ]
    assert shown[1].content == b"a,b\n1,2\n"
    assert len(shown[2].content) == len(PNG) + PHOTO_LIMIT


async def test_an_image_that_telegram_cannot_show_is_a_document(
    server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path
) -> None:
    await platform.upload(team, _written(tmp_path, "x", b"no image"), "x.png", "k")
    assert [message.kind for message in server.seen(int(team.chat))] == ["document"]


async def test_a_file_goes_to_the_topic_and_answers_the_question(
    server: TelegramServer, platform: Telegram, tmp_path: Path
) -> None:
    chat = server.group(forum=True)
    topic = server.topic(chat, "Plans")
    question = server.person("ann").says("/status", chat, thread=topic)
    target = Target(str(chat), f"forum:{topic}", "group", str(question))
    await platform.upload(target, _written(tmp_path, "a", b"a"), "a.txt", "k")
    shown = server.seen(chat, topic)[-1]
    assert (shown.file, shown.reply_to) == ("a.txt", question)


async def test_a_file_that_is_too_large_is_not_sent(
    server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(UPLOAD_LIMIT + 1)
    with pytest.raises(Rejected, match="a little more than 50 MB"):
        await platform.upload(team, path, "film.mp4", "k")
    assert server.calls == []


async def test_photos_and_documents_are_in_albums_of_their_own(
    server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path
) -> None:
    names = ["a.png", "b.png", "c.csv", "d.csv", "e.png"]
    files = [File(_written(tmp_path, name, PNG), name, len(PNG)) for name in names]
    large = File(_written(tmp_path, "f.png", PNG + b"0" * PHOTO_LIMIT), "f.png", len(PNG) + PHOTO_LIMIT)
    assert [platform.bundle(files[start:]) for start in (0, 2, 4)] == [2, 2, 1]
    assert platform.bundle([large, files[2]]) == 2
    albums = [await platform.upload_bundle(team, album, "k") for album in (files[:2], files[2:4], [large, files[2]])]
    shown = server.seen(int(team.chat))
    assert [str(message.id) for message in shown] == [identity for album in albums for identity in album]
    assert [message.kind for message in shown] == ["photo"] * 2 + ["document"] * 4
    assert shown[0].content == PNG


async def test_an_album_with_a_broken_photo_is_refused_as_a_whole(
    server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path
) -> None:
    files = [File(_written(tmp_path, name, content), name, 8) for name, content in (("a.png", PNG), ("b.png", b"no"))]
    with pytest.raises(Rejected, match="message #2"):
        await platform.upload_bundle(team, files, "k")
    assert server.seen(int(team.chat)) == []


async def test_an_empty_file_is_refused(platform: Telegram, team: Target, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="non-empty"):
        await platform.upload(team, _written(tmp_path, "a", b""), "a.txt", "k")


async def test_the_fates_of_an_upload(server: TelegramServer, platform: Telegram, team: Target, tmp_path: Path) -> None:
    path = _written(tmp_path, "chart", PNG)
    server.faults.add("sendPhoto", "lose")
    with pytest.raises(FateUnknown):
        await platform.upload(team, path, "chart.png", "k")
    server.faults.add("sendDocument", "flood", seconds=3)
    with pytest.raises(RateLimited):
        await platform.upload(team, path, "chart.pdf", "k")
    assert [message.kind for message in server.seen(int(team.chat))] == ["photo"]


async def test_a_received_file_is_fetched(server: TelegramServer, account: Account, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    server.person("ann").sends(content, "data.bin")
    server.person("ann").sends(PNG, "x.jpg", kind="photo")
    document, photo = await account.messages(2)
    await account.platform.fetch(document.attachments[0], document.message, tmp_path / "a", 1 << 30)
    await account.platform.fetch(photo.attachments[0], photo.message, tmp_path / "b", 1 << 30)
    assert (tmp_path / "a").read_bytes() == content
    assert (tmp_path / "b").read_bytes() == PNG


@pytest.mark.parametrize(
    ("stated", "limit", "reason"),
    [
        (DOWNLOAD_LIMIT + 1, 1 << 30, "a little more than 20 MB"),
        (None, 9, "at most 9 bytes"),
        (5, 9, "more than 9 bytes"),
    ],
)
async def test_a_file_over_the_limit(
    server: TelegramServer, account: Account, tmp_path: Path, stated: int | None, limit: int, reason: str
) -> None:
    """Telegram's own limit, the caller's, and that of a server that states a wrong size."""
    server.person("ann").sends(b"0" * 10, "data.bin", size=stated)
    message = await account.message()
    with pytest.raises(Rejected, match=reason):
        await account.platform.fetch(message.attachments[0], message.message, tmp_path / "a", limit)


async def test_a_web_page_is_no_file(server: TelegramServer, account: Account, tmp_path: Path) -> None:
    ann = server.person("ann")
    ann.sends(b"%PDF", "report.pdf", mime="application/pdf")
    ann.sends(b"<html>", "page.html", mime="text/html")
    report, page = await account.messages(2)
    server.pages |= {report.attachments[0].id, page.attachments[0].id}
    with pytest.raises(Rejected, match=r"report.pdf: a web page"):
        await account.platform.fetch(report.attachments[0], report.message, tmp_path / "a", 100)
    await account.platform.fetch(page.attachments[0], page.message, tmp_path / "b", 100)
    assert (tmp_path / "b").read_bytes() == b"<html>Sign in</html>"


async def test_an_expired_handle(server: TelegramServer, account: Account, tmp_path: Path) -> None:
    server.person("ann").sends(b"%PDF", "report.pdf")
    message = await account.message()
    server.expired.add(message.attachments[0].id)
    with pytest.raises(Rejected, match="Wrong file_id"):
        await account.platform.fetch(message.attachments[0], message.message, tmp_path / "a", 100)


async def test_a_broken_download_can_be_tried_again(server: TelegramServer, account: Account, tmp_path: Path) -> None:
    server.person("ann").sends(b"%PDF", "report.pdf")
    message = await account.message()
    attachment: Attachment = message.attachments[0]
    for kind in ("drop", "status"):
        server.faults.add("download", kind)
        with pytest.raises(Unavailable) as caught:
            await account.platform.fetch(attachment, message.message, tmp_path / "a", 100)
        assert server.token not in str(caught.value)
    await account.platform.fetch(attachment, message.message, tmp_path / "a", 100)
    assert (tmp_path / "a").read_bytes() == b"%PDF"
