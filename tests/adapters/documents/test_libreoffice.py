"""Files that LibreOffice writes, in its own formats and in Microsoft's: their text is what the document says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.documents import old_words
from adapters.documents.job import Rejected
from adapters.documents.local import LocalDocuments
from tests.adapters.documents.test_offices import text_of
from tests.support.office import OFFICES

pytestmark = [
    pytest.mark.long(keep=4),
    pytest.mark.anyio,
    pytest.mark.skipif(not shutil.which("soffice"), reason="LibreOffice (soffice) is not installed"),
]
PAGE = (
    '<html><meta charset="utf-8"><h1>Bericht</h1><p>Größe: 5 €, a|b, <a href="https://example.org">a page</a>.</p>'
    "<ul><li>first</li><li>second</li></ul><table border=1><tr><td>id</td><td>name</td></tr><tr><td>007</td>"
    "<td>José</td></tr></table><p>日本語</p></html>"
)
SHORT = '<html><meta charset="utf-8"><p>See <a href="https://example.org">a Größe</a> now.</p></html>'
TABLE = "| id | name |\n| --- | --- |\n| 007 | José |\n\n日本語"
DRAWN = "```\n|id    |name     |\n|007   |José     |\n```\n\n日本語"
LINES = 'id;amount;note\n007;1,5;"a|b"\nNA;;"x, y"\n'
SHEET = "## table\n| id | amount | note |\n| --- | --- | --- |\n| 007 | 1,5 | a\\|b |\n| NA |  | x, y |"
AS_TEXT = "--infilter=CSV:59,34,76,1,1/2/2/2/3/2"
AS_WORDS = "--infilter=HTML (StarWriter)"
TALK = (
    "<!-- Slide number: 1 -->\n\n# Why\n\nBecause\n  - of this\n\n### Notes:\nSpeak slowly\n\n"
    "<!-- Slide number: 2 -->\n\n> [This slide is hidden.]\n\n# Spare"
)
MADE: list[tuple[str, str, tuple[str, ...], str]] = [
    ("page.html", "odt", (AS_WORDS,), f"# Bericht\n\nGröße: 5 €, a|b, a page.\n\n- first\n- second\n\n{TABLE}"),
    ("page.html", "rtf", (AS_WORDS,), f"Bericht\nGröße: 5 €, a|b, a page.\n•\tfirst\n•\tsecond\n\n{TABLE}"),
    ("page.html", "docx", (AS_WORDS,),
     f"# Bericht\n\nGröße: 5 €, a|b, [a page](https://example.org/).\n\n* first\n* second\n\n{TABLE}"),
    ("table.csv", "ods", (AS_TEXT,), SHEET),
    ("table.csv", "xls", (AS_TEXT,), SHEET),
    ("table.csv", "xlsx", (AS_TEXT,), SHEET),
    ("talk.pptx", "pptx", (), TALK),
    ("talk.pptx", "odp", (), TALK.replace("Because\n  - of", "- Because\n\n  - of")),
]  # fmt: skip
"""What is written, in which format, how it is read, and the text."""

Office = Callable[[str, str, tuple[str, ...]], bytes]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """Has LibreOffice write a file in a format."""
    place = tmp_path_factory.mktemp("office")
    (place / "page.html").write_text(PAGE)
    (place / "short.html").write_text(SHORT)
    (place / "table.csv").write_text(LINES)
    (place / "talk.pptx").write_bytes(OFFICES["talk.pptx"][0]())

    def write(source: str, form: str, arguments: tuple[str, ...]) -> bytes:
        command = ["soffice", "--headless", "--norestore", f"-env:UserInstallation=file://{place}/profile"]
        command += [*arguments, "--convert-to", form, "--outdir", str(place / "out"), str(place / source)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return (place / "out" / source).with_suffix(f".{form}").read_bytes()

    return write


@pytest.mark.parametrize(("source", "form", "arguments", "text"), MADE)
def test_what_libreoffice_writes(office: Office, source: str, form: str, arguments: tuple[str, ...], text: str) -> None:
    assert text_of(f"a.{form}", office(source, form, arguments)) == text


@pytest.mark.skipif(not all(map(shutil.which, ("antiword", "catdoc"))), reason="antiword and catdoc are not installed")
async def test_documents_of_old_word(office: Office, tmp_path: Path) -> None:
    """antiword refuses texts of few characters: catdoc reads them. In the process that a server uses, in its limits."""
    documents = LocalDocuments(tmp_path)
    page, _ = await documents.text("a.doc", office("page.html", "doc", (AS_WORDS,)), _silent)
    short, _ = await documents.text("a.doc", office("short.html", "doc", (AS_WORDS,)), _silent)
    assert page.strip() == f"Bericht\n\nGröße: 5 €, a|b, a page.\n\nfirst\nsecond\n\n{DRAWN}"
    assert " ".join(short.split()) == "See a Größe now."


def test_documents_of_old_word_without_its_programs(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_words, "PROGRAMS", (("no-such-program",),))
    with pytest.raises(Rejected, match=r"old format; save it as \.docx, or have `antiword` and `catdoc` installed"):
        text_of("a.doc", office("page.html", "doc", (AS_WORDS,)))


def test_presentations_of_old_powerpoint(office: Office) -> None:
    with pytest.raises(Rejected, match=r"old format that cannot be converted; save it as \.pptx"):
        text_of("a.ppt", office("talk.pptx", "ppt", ()))


async def _silent(_: str) -> None: ...
