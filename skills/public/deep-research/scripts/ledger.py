"""Keeps the sources of a report and the words in them that support it, in one folder.

    python3 ledger.py add research --url URL --title TITLE [--date 2026-01-31] [--kind primary] < passages.txt
    python3 ledger.py claim research --source 1 --quote "exact words" "the claim in your words"
    python3 ledger.py list research

`add` reads the passages of the page from standard input, as they stand there, and prints the number to cite.
"""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

KINDS = ("primary", "secondary", "opinion", "vendor")
TRACKING = ("utm_", "fbclid", "gclid", "mc_", "ref")
_SAME = str.maketrans(
    {"“": '"', "”": '"', "„": '"', "’": "'", "‘": "'", "–": "-", "—": "-", "\u00ad": None, "…": "..."}
)


class Problem(Exception):
    """A mistake in the request or the folder."""


def normal(text: str) -> str:
    """Returns the words as they are compared: quotes, dashes, spaces and capitals do not matter."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_SAME).casefold().split())


def address(url: str) -> str:
    """Returns the URL by which a source is recognised: without tracking and fragment."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Problem(f"url: {url!r} is not an http(s) address")
    query = urlencode([(k, v) for k, v in parse_qsl(parts.query) if not k.lower().startswith(TRACKING)])
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), query, ""))


class Ledger:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = _lines(folder / "sources.jsonl")
        self.claims = _lines(folder / "claims.jsonl")

    def passages(self, number: int) -> str:
        path = self.folder / f"source-{number}.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def add(self, url: str, title: str, published: str | None, kind: str, passages: str) -> int:
        if len(passages.split()) < 5:
            raise Problem("standard input: has no passages; copy the sentences that you use, as they stand on the page")
        if published:
            date.fromisoformat(published)
        url = address(url)
        known = next((source["number"] for source in self.sources if source["url"] == url), None)
        number = known or len(self.sources) + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"source-{number}.txt").open("a", encoding="utf-8") as file:
            file.write(passages.strip() + "\n\n")
        if known is None:
            seen = datetime.now(UTC).date().isoformat()
            source = {"number": number, "url": url, "title": title, "date": published, "kind": kind, "seen": seen}
            self._append("sources.jsonl", source)
        return int(number)

    def claim(self, number: int, quote: str, text: str) -> None:
        if not any(source["number"] == number for source in self.sources):
            raise Problem(f"source {number}: is not in {self.folder}; there are {len(self.sources)}")
        if len(quote.split()) < 3:
            raise Problem("quote: fewer than three words prove nothing")
        if normal(quote) not in normal(self.passages(number)):
            raise Problem(f"quote: these words are not in the passages of source {number}; copy them exactly")
        self._append("claims.jsonl", {"source": number, "quote": quote, "claim": text})

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            raise Problem(f"{path}, line {number}: is not JSON") from None
    return records


def listing(ledger: Ledger) -> str:
    lines = []
    for source in ledger.sources:
        count = sum(claim["source"] == source["number"] for claim in ledger.claims)
        when = source["date"] or "no date"
        lines.append(
            f"[{source['number']}] {source['title']}. {source['url']} ({when}; {source['kind']}; {count} quotes)"
        )
    return "\n".join(lines) or "no sources"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add, claim, show = (commands.add_parser(name) for name in ("add", "claim", "list"))
    for command in (add, claim, show):
        command.add_argument("folder", type=Path)
    add.add_argument("--url", required=True)
    add.add_argument("--title", required=True)
    add.add_argument("--date", help="of publication, as 2026-01-31")
    add.add_argument("--kind", choices=KINDS, default="secondary")
    claim.add_argument("--source", type=int, required=True)
    claim.add_argument("--quote", required=True)
    claim.add_argument("text")
    options = parser.parse_args()
    try:
        ledger = Ledger(options.folder)
        match options.command:
            case "add":
                print(f"[{ledger.add(options.url, options.title, options.date, options.kind, sys.stdin.read())}]")
            case "claim":
                ledger.claim(options.source, options.quote, options.text)
                print(f"quote of [{options.source}] is there")
            case _:
                print(listing(ledger))
    except (Problem, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
