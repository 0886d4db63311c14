"""Conversations that are read by an address: what is shown, to whom, until when, and what the log holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.accounts import share_links
from channels.http.page import shares as routes
from core.config.settings import Limits
from core.events import thread
from core.runtime.system import System
from core.thread import shares
from tests.channels.http.people import ADA, AUTH, BOB, Answer, Browser, Place, WithAccounts, place
from tests.channels.http.test_folders import Setting, server
from tests.channels.http.test_views import dot
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
TOP = "/mnt/user-data"
PRESENTED = f"{TOP}/outputs/report/page.html"
CANARY = "canary-of-what-stays-private"
MESSAGES: list[dict[str, Any]] = [
    {"type": "human", "id": "h1", "content": "What is in it?"},
    {"type": "human", "id": "h2", "content": CANARY, "additional_kwargs": {"hide_from_ui": True}},
    {
        "type": "ai",
        "id": "a1",
        "content": [
            {"type": "reasoning", "reasoning": CANARY, "text": CANARY},
            {"type": "thinking", "thinking": CANARY},
            {"type": "text", "text": "I look."},
        ],
        "additional_kwargs": {"reasoning_content": CANARY},
        "tool_calls": [{"id": "c1", "name": "bash", "args": {"command": f"echo {CANARY}"}, "type": "tool_call"}],
    },
    {"type": "tool", "id": "t1", "name": "bash", "tool_call_id": "c1", "content": CANARY, "status": "error"},
    {"type": "system", "id": "s1", "content": CANARY},
    {"type": "ai", "id": "a2", "content": "It is **empty**."},
]


async def story(person: Browser, home: Path, user: str = "default", t: str = "t") -> Path:
    """A thread with messages of all kinds, a file that was presented, and one that was not. Returns its outputs."""
    assert (await person.ask("POST", "/api/threads", {"thread_id": t})).status == 200
    folder = home / "users" / user / "threads" / t / "user-data" / "outputs"
    (folder / "report").mkdir(parents=True)
    (folder / "report" / "page.html").write_text("<p>as it was</p>")
    (folder / "report" / "dot.png").write_bytes(dot())
    (folder / "private.txt").write_text(CANARY)
    (folder / "link").symlink_to("/etc/passwd")
    presented = [PRESENTED, f"{TOP}/outputs/report/dot.png", f"{TOP}/outputs/link", f"{TOP}/outputs/gone.txt"]
    values = {"messages": MESSAGES, "artifacts": presented, "title": "Empty things"}
    assert (await person.ask("POST", f"/api/threads/{t}/state", {"values": values})).status == 200
    return folder


async def share(person: Browser, t: str = "t", **body: Any) -> Any:
    answer = await person.ask("POST", f"/api/threads/{t}/share", body)
    assert answer.status == 201, answer.body
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.body


async def read(here: Place, token: str, rest: str = "", **headers: str) -> Answer:
    """As somebody who has the address, and nothing else."""
    return await here.browser(**headers).ask("GET", f"/api/shared/{token}{rest}")


async def test_messages_and_presented_files_and_nothing_else(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        await story(person, home)
        made = await share(person)
        assert made["url"] == f"/shared#{made['token']}"
        answer = await read(here, made["token"])
        assert answer.status == 200
        assert CANARY not in answer.raw.decode()
        assert answer.body["title"] == "Empty things"
        shown = [(m["id"], m["type"], m["text"], m["status"]) for m in answer.body["messages"]]
        assert shown == [
            ("h1", "human", "What is in it?", None),
            ("a1", "ai", "I look.", None),
            ("t1", "tool", "", "error"),
            ("a2", "ai", "It is **empty**.", None),
        ]
        assert answer.body["messages"][1]["tool_calls"] == [{"id": "c1", "name": "bash", "arguments": None}]
        assert [file["path"] for file in answer.body["files"]] == [PRESENTED, f"{TOP}/outputs/report/dot.png"]
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Robots-Tag"] == "noindex, nofollow"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in answer.headers
        with_arguments = await share(person, tool_arguments=True)
        calls = (await read(here, with_arguments["token"])).body["messages"][1]["tool_calls"]
        assert calls[0]["arguments"] == {"command": f"echo {CANARY}"}
        raw = b"".join([record.raw async for record in system.log.read(thread("t"))]).decode()
    assert made["token"] not in raw
    assert made["token"].split(".")[1] not in raw
    assert shares.digest(made["token"]) in raw


async def test_files_as_they_were_and_no_others(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        folder = await story(here.browser(), home)
        made = await share(here.browser())
        (folder / "report" / "page.html").write_text(f"<p>{CANARY}</p>")
        (folder / "report" / "dot.png").unlink()
        saved = await read(here, made["token"], f"/files{PRESENTED}")
        assert (saved.status, saved.raw) == (200, b"<p>as it was</p>")
        assert saved.headers["Content-Disposition"].startswith("attachment")
        assert saved.headers["X-Robots-Tag"] == "noindex, nofollow"
        elsewhere = await read(here, made["token"], f"/files{PRESENTED}?view=sandbox")
        where = elsewhere.headers["Location"]
        assert (elsewhere.status, where) == (302, f"/api/shared/{made['token']}/view{PRESENTED}")
        for frame, policy in (("iframe", "sandbox allow-scripts;"), ("document", "sandbox;")):
            shown = await here.browser(**{"Sec-Fetch-Dest": frame}).ask("GET", where)
            assert shown.raw == b"<p>as it was</p>"
            assert shown.headers["Content-Security-Policy"].startswith(policy)
            assert f"/api/shared/{made['token']}/view/" in shown.headers["Content-Security-Policy"]
            assert "connect-src 'none'" in shown.headers["Content-Security-Policy"]
            assert (shown.headers["Referrer-Policy"], shown.headers["Cache-Control"]) == ("no-referrer", "no-store")
        picture = await here.browser().ask("GET", where.replace("page.html", "dot.png"))
        assert picture.raw == dot()
        others = (
            "private.txt",
            "link",
            "gone.txt",
            "report",
            "report/../private.txt",
            "report/..%2Fprivate.txt",
            "%00",
        )
        for other in others:
            for way in ("files", "view"):
                assert (await read(here, made["token"], f"/{way}{TOP}/outputs/{other}")).status == 404, other


async def test_what_comes_later_is_not_shown(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        await story(person, home)
        made = await share(person)
        before = (await read(here, made["token"])).body
        later = {"messages": [{"type": "human", "id": "h3", "content": CANARY}, {"type": "remove", "id": "a2"}]}
        assert (await person.ask("POST", "/api/threads/t/state", {"values": {**later, "title": CANARY}})).status == 200
        assert (await read(here, made["token"])).body == before
        assert CANARY in (await read(here, (await share(person))["token"])).raw.decode()


async def test_pages_are_the_whole(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        await story(here.browser(), home)
        token = (await share(here.browser()))["token"]
        whole = (await read(here, token)).body["messages"]
        for limit in (1, 2, 3):
            seen: list[Any] = []
            after: int | None = 0
            while after is not None:
                page = (await read(here, token, f"?limit={limit}&after_seq={after}")).body
                seen += page["messages"]
                after = page["next_after_seq"]
            assert seen == whole


async def test_revoked_and_erased(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        await story(person, home)
        one, two = await share(person), await share(person)
        listed = (await person.ask("GET", "/api/threads/t/share")).body["shares"]
        assert [entry["share_id"] for entry in listed] == [two["share_id"], one["share_id"]]
        assert one["token"] not in str(listed)
        copies = home / "users" / "default" / "threads" / "t" / "shares"
        assert {path.name for path in copies.iterdir()} == {one["share_id"], two["share_id"]}
        assert (await person.ask("DELETE", f"/api/threads/t/share/{one['share_id']}")).status == 204
        assert (await person.ask("DELETE", f"/api/threads/t/share/{one['share_id']}")).status == 404
        assert [path.name for path in copies.iterdir()] == [two["share_id"]]
        gone = await read(here, one["token"])
        assert gone.status == (await read(here, one["token"], f"/files{PRESENTED}")).status == 404
        assert (await read(here, two["token"])).status == 200
        copy = (await person.ask("POST", "/api/threads/t/copy")).body["thread_id"]
        assert (await person.ask("GET", f"/api/threads/{copy}/share")).body == {"shares": []}
        log = [record async for record in system.log.read(thread("t"))]
        assert (await person.ask("DELETE", "/api/threads/t")).status == 204
        assert (await read(here, two["token"])).body == gone.body
    [shared, _, revoked] = [record for record in log if "shared" in record.type]
    assert (shared.type, revoked.type) == ("thread.shared", "thread.unshared")
    assert msgspec.json.decode(revoked.raw)["by"] == "default"


async def test_the_past_is_erased_with_its_shares(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        await story(person, home)
        assert (await person.ask("POST", "/api/threads/t/state", {"values": {"title": "x"}})).status == 200
        made = await share(person)
        pruning = {"thread_ids": ["t"], "strategy": "keep_latest"}
        assert (await person.ask("POST", "/api/threads/prune", pruning)).body["pruned_count"] == 1
        assert (await read(here, made["token"])).status == 404


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_but_the_token_opens_it(system: System, tmp_path: Path, seed: int) -> None:
    """Any other text is answered as one that was revoked."""
    home, dice = tmp_path / "home", random.Random(seed)
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        await story(person, home)
        made = await share(person)
        token, letters = made["token"], "abcXYZ019-_."
        others = [
            "x",
            ".",
            "..%2F",
            "a.b.c",
            token + "x",
            token[1:],
            token.split(".")[0] + "..",
            "%00",
            "%C3%A9",
            "9" * 5000,
        ]
        others += [made["share_id"], shares.digest(token), "null"]
        others.append(share_links.make_token(home, "t"))  # signed here, and never recorded
        for _ in range(25):
            place = dice.randrange(len(token))
            others.append(token[:place] + dice.choice(letters.replace(token[place], "")) + token[place + 1 :])
        for other in others:
            answer = await read(here, other)
            assert (answer.status, answer.code) == (404, "not_found"), other
        assert (await read(here, token)).status == 200


async def test_it_ends_when_it_was_to_end(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        await story(here.browser(), home)
        for days in (0, -1, 4000, "x"):
            answer = await here.browser().ask("POST", "/api/threads/t/share", {"expires_in_days": days})
            assert answer.status == 422
        assert (await share(here.browser()))["expires_at"] is None
        made = await share(here.browser(), expires_in_days=1)
        assert (await read(here, made["token"])).body["expires_at"] == made["expires_at"] > made["created_at"]
        monkeypatch.setattr(routes, "DAY", -1)
        ended = await share(here.browser(), expires_in_days=1)
        assert (await read(here, ended["token"])).status == 404


async def test_limits(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        person = here.browser()
        assert (await person.ask("POST", "/api/threads/none/share", {})).status == 404
        await person.ask("POST", "/api/threads", {"thread_id": "empty"})
        assert (await person.ask("POST", "/api/threads/empty/share", {})).status == 409
        await story(person, home)
        for name, value in (("MOST_FILES", 1), ("MOST_BYTES", 20)):
            with monkeypatch.context() as patch:
                patch.setattr(shares, name, value)
                answer = await person.ask("POST", "/api/threads/t/share", {})
            assert answer.status == 409
            assert "dot.png: a share has at most" in answer.body["detail"]
        for _ in range(20):
            await share(person)
        assert (await person.ask("POST", "/api/threads/t/share", {})).status == 409
        copies = home / "users" / "default" / "threads" / "t" / "shares"
        assert len([*copies.iterdir()]) == 20, "what was refused leaves nothing"


async def test_a_share_is_its_owners_and_ends_with_the_account(system: System, tmp_path: Path) -> None:
    home, config = tmp_path / "home", WithAccounts()
    async with place(system, config, home) as here:
        admin, ada, bob = await here.admin(), await here.person(ADA), await here.person(BOB)
        user = (await ada.me()).body["id"]
        await story(ada, home, user)
        made = await share(ada)
        assert made["shared_by"] == user
        for method, rest in (("POST", ""), ("GET", ""), ("DELETE", f"/{made['share_id']}")):
            for other in (bob, admin):
                assert (await other.ask(method, f"/api/threads/t/share{rest}", {})).status == 404
        assert (await here.browser().ask("POST", "/api/threads/t/share", {}, csrf=None)).status == 401
        assert (await ada.ask("POST", "/api/threads/t/share", {}, csrf=None)).status == 403
        answer = await read(here, made["token"])
        assert answer.status == 200
        assert user not in answer.raw.decode(), "who it was is nobody's business"
        assert (await bob.ask("GET", f"/api/shared/{made['token']}")).body == answer.body
        assert (await ada.ask("POST", f"{AUTH}/logout-all")).status == 200
        assert (await read(here, made["token"])).status == 200, "it is no session"
        key = {"X-Api-Key": "sk-0000000000000000-" + "x" * 43}
        assert (await read(here, made["token"], **key)).status == 200, "credentials are not looked at"
        config.limits = Limits(requests_per_minute=3)
        statuses = [(await read(here, made["token"])).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        config.limits = Limits()
        await here.directory.disable(ADA, actor="test")
        for rest in ("", f"/files{PRESENTED}", f"/view{PRESENTED}"):
            await ended(here, made["token"], rest)


async def ended(here: Place, token: str, rest: str) -> None:
    """Within about a second: another process disabled the account."""

    async def gone() -> bool:
        return (await read(here, token, rest)).status == 404

    await eventually(gone)


def test_text_of_every_block_that_is_no_text_stays_private() -> None:
    """Whatever providers call their reasoning, now or later."""
    kinds = ["reasoning", "thinking", "redacted_thinking", "image_url", "server_tool_call", "tool_use", "", None, 1]
    for kind in kinds:
        content = [{"type": kind, "text": CANARY, "thinking": CANARY}, {"type": "text", "text": "said"}, "so"]
        assert routes._text({"type": "ai", "content": content}, {}) == "saidso", kind
