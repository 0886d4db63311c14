"""Checks every citation of a report: python3 check_citations.py report.md --research research [--fetch].

Each [n] must be a known source with a quote that stands in its passages, and numbers beside it must stand there.
`--fetch` reads the pages again over the network. Exit code 1: there are problems.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ledger import Ledger, Problem, normal

CITATION = re.compile(r"\[(\d+(?:\s*[,;]\s*\d+)*)\](?!\()")
_SENTENCE = re.compile(r"(?<=[.!?])(?:\s*\[[\d,; ]+\])*\s+(?=[A-ZÄÖÜ“\"(*])")
_NUMBER = re.compile(r"\d{1,3}(?:[ ,.\u00a0\u202f]\d{3})+(?![\d])(?:[.,]\d+)?|\d+(?:[.,]\d+)?")
_THOUSANDS = re.compile(r"[ ,.\u00a0\u202f](?=\d{3}(?!\d))")
_YEAR = re.compile(r"(?:19|20)\d\d")
_ISO = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_SECTION = re.compile(r"^#+\s*(sources|references|bibliography|quellen)\b.*", re.IGNORECASE | re.MULTILINE)
MAX_BYTES, SECONDS, MAX_SHARE, FEW = 4 << 20, 20, 0.5, 5


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each sentence outside of code and headings. A table row is a sentence."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip() and not line.lstrip().startswith("#"):
            for sentence in [line] if line.lstrip().startswith("|") else _SENTENCE.split(_joined(line)):
                yield number, sentence.strip()


def _joined(line: str) -> str:
    """Puts a citation after the full stop before it, so that it stays with its sentence."""
    return re.sub(r"([.!?])\s*((?:\[[\d,; ]+\]\s*)+)", lambda m: f" {m[2].strip()}{m[1]} ", line)


def cited(text: str) -> list[int]:
    return [int(number) for match in CITATION.finditer(text) for number in re.findall(r"\d+", match[1])]


def numbers(text: str) -> set[str]:
    """Returns the numbers, written in one way. Single digits say too little to be looked for."""
    matches = _NUMBER.findall(CITATION.sub("", text))
    return {_THOUSANDS.sub("", value).replace(",", ".") for value in matches if len(re.sub(r"\D", "", value)) > 1}


def _body(report: str) -> tuple[str, str]:
    """Returns the text before the list of sources, and the list."""
    heading = _SECTION.search(report)
    return (report[: heading.start()], report[heading.start() :]) if heading else (report, "")


def check(report: str, ledger: Ledger) -> Iterator[str]:
    body, end = _body(report)
    known = {source["number"]: source for source in ledger.sources}
    for line, sentence in sentences(body):
        used = [number for number in cited(sentence) if number in known]
        yield from (f"line {line}: [{number}] is not a source" for number in cited(sentence) if number not in known)
        there = numbers(" ".join(ledger.passages(number) for number in used))
        if used and (missing := sorted(numbers(sentence) - there)):
            yield f"line {line}: {', '.join(missing)} is not in the passages of {used}: {sentence[:70]!r}"
        bare = {number for number in numbers(_ISO.sub("", sentence)) if not _YEAR.fullmatch(number)}
        if bare and not cited(sentence):
            yield f"line {line}: {', '.join(sorted(bare))} has no source: {sentence[:70]!r}"
    yield from _sources(body, end, ledger)


def _sources(body: str, end: str, ledger: Ledger) -> Iterator[str]:
    uses = Counter(cited(body))
    quoted = {claim["source"] for claim in ledger.claims}
    if not uses:
        yield "the report cites nothing"
    for claim in ledger.claims:
        if normal(claim["quote"]) not in normal(ledger.passages(claim["source"])):
            yield f"[{claim['source']}]: the quote {claim['quote'][:60]!r} is not in its passages"
    for source in ledger.sources:
        number = source["number"]
        if number in uses and number not in quoted:
            yield f"[{number}]: is cited, but no quote supports it (ledger.py claim)"
        if number in uses and source["url"] not in end:
            yield f"[{number}]: its address {source['url']} is not in the section Sources"
        if number in uses and not source["date"]:
            yield f"[{number}]: has no date; find it, or cite a dated page instead"
    hosts = Counter(urlsplit(s["url"]).hostname for s in ledger.sources for _ in range(uses[s["number"]]))
    if hosts.total() < FEW:
        return
    if len(hosts) > 1 and (top := hosts.most_common(1)[0])[1] > MAX_SHARE * hosts.total():
        yield f"{top[1]} of {hosts.total()} citations come from {top[0]}: look for an independent source"
    elif len(hosts) == 1:
        yield f"all citations come from {next(iter(hosts))}: look for an independent source"


def fetched(ledger: Ledger) -> Iterator[str]:
    """Reads the pages again. A page that cannot be read is named, and is not a proof against the report."""
    for source in ledger.sources:
        quotes = [claim["quote"] for claim in ledger.claims if claim["source"] == source["number"]]
        if not quotes:
            continue
        try:
            page = normal(_page(source["url"]))
        except (OSError, ValueError) as error:
            yield f"[{source['number']}]: {source['url']} cannot be read: {error}"
            continue
        yield from (
            f"[{source['number']}]: the page does not have {quote[:60]!r}"
            for quote in quotes
            if normal(quote) not in page
        )


def _page(url: str) -> str:
    request = urllib.request.Request(url, headers={"User-Agent": "citation-check"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        if "html" not in (kind := response.headers.get_content_type()) and not kind.startswith("text/"):
            raise ValueError(f"is {kind}, read it with web_fetch")
        text = response.read(MAX_BYTES).decode(response.headers.get_content_charset() or "utf-8", "replace")
    text = re.sub(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->", " ", text)
    text = re.sub(r"(?i)</?(?:b|i|em|strong|a|span|sup|sub|mark|code|q)\b[^>]*>", "", text)
    return html.unescape(re.sub(r"<[^>]*>", " ", text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--research", type=Path, required=True, help="the folder of ledger.py")
    parser.add_argument("--fetch", action="store_true", help="read the pages again (needs the network)")
    options = parser.parse_args()
    try:
        ledger = Ledger(options.research)
        report = options.report.read_text(encoding="utf-8")
        problems = [*check(report, ledger), *(fetched(ledger) if options.fetch else ())]
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    count = len(cited(_body(report)[0]))
    print(f"{count} citations, {len(ledger.sources)} sources, {len(ledger.claims)} quotes, {len(problems)} problems")
    print("\n".join(f"- {problem}" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
