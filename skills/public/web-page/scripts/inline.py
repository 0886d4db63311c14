"""Puts style sheets, scripts and images into the page: python3 inline.py site/index.html --out page.html."""

from __future__ import annotations

import argparse
import base64
import mimetypes
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

try:
    from bs4 import BeautifulSoup
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install beautifulsoup4", file=sys.stderr)
    sys.exit(3)

_URL = re.compile(r"url\(\s*(['\"]?)([^'\")]+)\1\s*\)")


class Problem(Exception):
    """A file that cannot be put into the page."""


def local(folder: Path, place: str, root: Path) -> Path | None:
    """Returns the file, None for what is no file of the site. It must lie in the folder of the page."""
    parts = urlsplit(place)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    path = (folder / unquote(parts.path).lstrip("/")).resolve()
    if not path.is_relative_to(root.resolve()):
        raise Problem(f"{place}: lies outside of {root}")
    if not path.is_file():
        raise Problem(f"{place}: no such file")
    return path


def data_uri(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def style(text: str, folder: Path, root: Path) -> str:
    def place(match: re.Match[str]) -> str:
        path = local(folder, match[2], root)
        return f'url("{data_uri(path)}")' if path else match[0]

    if "@import" in text:
        raise Problem("@import: put the rules into the style sheet itself")
    return _URL.sub(place, text)


def inline(page: Path) -> str:
    root = page.parent
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for link in soup.find_all("link", href=True):
        if (path := local(root, str(link["href"]), root)) is None:
            continue
        if "stylesheet" in (link.get("rel") or []):
            tag = soup.new_tag("style")
            tag.string = style(path.read_text(encoding="utf-8"), path.parent, root)
            link.replace_with(tag)
        else:
            link["href"] = data_uri(path)
    for tag in soup.find_all("style"):
        tag.string = style(str(tag.string or ""), root, root)
    for script in soup.find_all("script", src=True):
        if path := local(root, str(script["src"]), root):
            del script["src"]
            deferred = script.attrs.pop("defer", None) is not None
            script.string = path.read_text(encoding="utf-8").replace("</script", "<\\/script")
            if deferred and soup.body:
                soup.body.append(script.extract())  # what waits for the page stands at its end
    for tag in soup.find_all(["img", "source", "video", "audio"], src=True):
        if path := local(root, str(tag["src"]), root):
            tag["src"] = data_uri(path)
    return str(soup)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        text = inline(options.page)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    except (Problem, OSError, UnicodeDecodeError) as error:
        print(f"{options.page}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out} ({len(text.encode()) // 1000} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
