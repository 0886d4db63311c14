"""Checks a web page or a folder of them: python3 check_page.py index.html [--single].

`--single`: everything must be in the file itself. Exit code 1: there are errors; warnings alone are fine.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

try:
    from bs4 import BeautifulSoup, Tag
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install beautifulsoup4", file=sys.stderr)
    sys.exit(3)

Remark = tuple[str, str]
"""`error` or `warning`, and a line."""

LEFTOVER = re.compile(r"\{\{.*?\}\}|lorem ipsum|\bTODO\b|\bTBD\b|your (?:text|company) here", re.IGNORECASE)
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
UNLABELLED = {"hidden", "submit", "button", "reset", "image"}
MAX_BYTES, MAX_IMAGE, MIN_CONTRAST = 3 << 20, 500_000, 4.5
_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"(--[\w-]+)\s*:\s*([^;]+)")
_HEX = re.compile(r"#([0-9a-f]{3}|[0-9a-f]{6})\b", re.IGNORECASE)


def check(path: Path, single: bool) -> Iterator[Remark]:
    text = path.read_text(encoding="utf-8")
    page = BeautifulSoup(text, "html.parser")
    if not text.lstrip().lower().startswith("<!doctype html"):
        yield "error", "no <!doctype html>: browsers fall back to old rules"
    yield from head(page)
    yield from structure(page)
    yield from names(page)
    yield from links(page, path)
    yield from loads(page, path, single)
    yield from scripts(page)
    yield from colours("\n".join(style.get_text() for style in page.find_all("style")))
    for match in LEFTOVER.finditer(text):
        yield "error", f"leftover {match[0]!r}"
    if len(text.encode()) > MAX_BYTES:
        yield "warning", f"{len(text.encode()) >> 20} MB: slow on a phone; scale the images"


def head(page: BeautifulSoup) -> Iterator[Remark]:
    html = page.find("html")
    if not isinstance(html, Tag) or not html.get("lang"):
        yield "error", "<html> has no lang"
    if not (page.title and page.title.get_text(strip=True)):
        yield "error", "no <title>"
    if not page.find("meta", charset=True):
        yield "error", "no <meta charset>"
    viewport = page.find("meta", attrs={"name": "viewport"})
    if not isinstance(viewport, Tag):
        yield "error", "no <meta name=viewport>: tiny on a phone"
    elif re.search(r"user-scalable\s*=\s*no|maximum-scale\s*=\s*1\b", str(viewport.get("content"))):
        yield "error", "the viewport forbids zooming"
    if not page.find("meta", attrs={"name": "description"}):
        yield "warning", "no <meta name=description>"


def structure(page: BeautifulSoup) -> Iterator[Remark]:
    headings = page.find_all(re.compile(r"^h[1-6]$"))
    first = sum(heading.name == "h1" for heading in headings)
    if first != 1:
        yield "error", f"{first} <h1>, there must be one"
    level = 0
    for heading in headings:
        here = int(heading.name[1])
        if level and here > level + 1:
            yield "error", f"<{heading.name}> {heading.get_text(strip=True)[:40]!r} skips a level"
        level = here
    if not page.find("main"):
        yield "warning", "no <main>"
    double = [name for name, count in Counter(tag["id"] for tag in page.find_all(id=True)).items() if count > 1]
    yield from (("error", f"id {name!r} is there twice") for name in double)


def names(page: BeautifulSoup) -> Iterator[Remark]:
    """Everything that a person can use or see has a name for those who do not see it."""
    labels = {label["for"] for label in page.find_all("label", attrs={"for": True})}
    for image in page.find_all("img"):
        if image.get("alt") is None:
            yield "error", f"<img {str(image.get('src'))[:40]}> has no alt (empty if it is decoration)"
    for field in page.find_all(["input", "select", "textarea"]):
        named = (
            field.get("id") in labels
            or field.find_parent("label")
            or field.get("aria-label")
            or field.get("aria-labelledby")
        )
        if str(field.get("type", "text")) not in UNLABELLED and not named:
            yield "error", f"<{field.name} name={field.get('name')!r}> has no label"
    for control in page.find_all(["button", "a"]):
        pictures = [image.get("alt") for image in control.find_all("img")]
        if not (control.get_text(strip=True) or control.get("aria-label") or any(pictures) or control.find("title")):
            yield "error", f"<{control.name}> without a name: {str(control)[:60]}"
    for tag in page.find_all(onclick=True):
        if tag.name not in ("button", "a", "input", "summary"):
            yield "error", f"<{tag.name} onclick> cannot be reached by keyboard: use <button>"


def links(page: BeautifulSoup, path: Path) -> Iterator[Remark]:
    ids = {tag["id"] for tag in page.find_all(id=True)}
    for link in page.find_all("a"):
        target = link.get("href")
        if target is None or target in ("", "#") or str(target).startswith("javascript:"):
            yield "error", f"link {link.get_text(strip=True)[:40]!r} leads nowhere"
            continue
        parts = urlsplit(str(target))
        if parts.scheme or parts.netloc:
            continue
        if not parts.path and parts.fragment and parts.fragment not in ids and parts.fragment != "top":
            yield "error", f"link to #{parts.fragment}, which is not there"
        elif parts.path and not _local(path, parts.path).exists():
            yield "error", f"link to {parts.path}, which is not there"


def loads(page: BeautifulSoup, path: Path, single: bool) -> Iterator[Remark]:
    places = [str(tag[LOADED[tag.name]]) for tag in page.find_all(list(LOADED)) if tag.get(LOADED[tag.name])]
    places += [match for style in page.find_all("style") for match in _URL.findall(style.get_text())]
    for place in places:
        parts = urlsplit(place)
        if parts.scheme == "data" or place.startswith("#"):
            continue
        if parts.scheme or parts.netloc:
            yield (
                ("error" if single else "warning"),
                f"loads {place[:80]} from elsewhere: fails offline, and tells them who reads",
            )
        elif not (file := _local(path, parts.path)).is_file():
            yield "error", f"{place} is not there"
        elif single:
            yield "error", f"{place} is a file of its own (inline.py puts it into the page)"
        elif file.stat().st_size > MAX_IMAGE:
            yield "warning", f"{place} has {file.stat().st_size // 1000} kB: scale it"


def scripts(page: BeautifulSoup) -> Iterator[Remark]:
    """Reads the scripts by Node, where it is installed."""
    node = shutil.which("node")
    for number, script in enumerate(page.find_all("script", src=False), start=1):
        kind = str(script.get("type", "text/javascript"))
        if node is None or kind not in ("text/javascript", "module") or not script.get_text().strip():
            continue
        suffix = ".mjs" if kind == "module" else ".js"
        with tempfile.NamedTemporaryFile("w", suffix=suffix, encoding="utf-8") as file:
            file.write(script.get_text())
            file.flush()
            process = subprocess.run(
                [node, "--check", file.name], capture_output=True, text=True, timeout=60, check=False
            )
        if process.returncode:
            reason = next((line for line in process.stderr.splitlines() if "Error" in line), "does not parse")
            yield "error", f"script {number}: {reason}"


def colours(css: str) -> Iterator[Remark]:
    """Compares text and background where both stand in one rule as hex colours or variables, in light and dark."""
    variables = dict(_VARIABLE.findall(css))
    for selector, body in _RULE.findall(css):
        rules = dict(re.findall(r"(?:^|;)\s*(color|background(?:-color)?)\s*:\s*([^;]+)", body))
        paper = rules.get("background") or rules.get("background-color")
        if "color" not in rules or not paper:
            continue
        for mode in (0, 1):
            pair = [_colour(value, variables, mode) for value in (rules["color"], paper)]
            if None not in pair and (ratio := contrast(*pair)) < MIN_CONTRAST:
                yield (
                    "error",
                    f"{selector.strip()[-40:]}: contrast {ratio:.1f}, needs {MIN_CONTRAST} ({('light', 'dark')[mode]})",
                )


def _colour(value: str, variables: dict[str, str], mode: int) -> tuple[float, ...] | None:
    for _ in range(5):
        if not (match := re.search(r"var\((--[\w-]+)\)", value)):
            break
        value = variables.get(match[1], "")
    hexes = _HEX.findall(value)
    if not hexes:
        return None
    digits = hexes[min(mode, len(hexes) - 1)] if "light-dark" in value else hexes[0]
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    return tuple(int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))


def contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Returns the ratio of WCAG 2."""

    def light(colour: tuple[float, ...]) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = max(light(first), light(second)), min(light(first), light(second))
    return (high + 0.05) / (low + 0.05)


def _local(page: Path, place: str) -> Path:
    return page.parent / unquote(place).lstrip("/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="a file, or a folder")
    parser.add_argument("--single", action="store_true")
    options = parser.parse_args()
    pages = sorted(options.page.rglob("*.html")) if options.page.is_dir() else [options.page]
    errors = 0
    if not pages:
        print(f"{options.page}: has no .html", file=sys.stderr)
        return 2
    for path in pages:
        try:
            remarks = list(check(path, options.single))
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        errors += sum(kind == "error" for kind, _ in remarks)
        print("\n".join(f"{path.name}: {kind}: {line}" for kind, line in remarks) or f"{path.name}: fine")
    print(f"{errors} errors in {len(pages)} pages")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
