"""E-mail messages: those of the internet (EML) by the standard library, those of Outlook (MSG) by markitdown."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.errors import MessageError
from email.message import EmailMessage
from typing import Any, BinaryIO

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.web import html_of, markdown
from core.files.encodings import decoded

HEADERS = ("From", "To", "Cc", "Date", "Subject")
MOST_PARTS = 200
_HTML_BODY, _SUBJECT_OF_FILE = "__substg1.0_10130102", ("3707001F", "3707001E", "3704001F", "3704001E")


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    content = document.read()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) and (text := decoded(content)):
        content = text.text.encode()
    message: Any = message_from_bytes(content.lstrip(b"\xef\xbb\xbf\r\n"), policy=policy.default)
    heads = [f"**{name}:** {value}" for name in HEADERS if (value := _header(message, name))]
    return joined(["# Email Message", "\n".join(heads), "## Content", *_bodies(message), *_attachments(message)]), None


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except (MessageError, ValueError, LookupError, AttributeError, IndexError):  # of a header that is malformed
        raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
        return " ".join(str(raw).split())


def _bodies(message: EmailMessage) -> Iterator[str]:
    """Yields the text that is shown: plain if there is one, else the page."""
    shown = [part for part in _leaves(message) if not _is_attached(part)]
    plain = [part for part in shown if part.get_content_type() == "text/plain"]
    pages = [part for part in shown if part.get_content_type() == "text/html"]
    if text := joined(_content(part) for part in plain):
        yield text
    else:
        yield from (markdown(_content(part)) for part in pages)
    for inner in shown:
        if inner.get_content_type() == "message/rfc822":
            yield note("a message that is attached")


def _leaves(message: EmailMessage) -> list[Any]:
    leaves = list[Any]()
    for part in message.walk():
        if not part.is_multipart() or part.get_content_type() == "message/rfc822":
            leaves.append(part)
        if len(leaves) == MOST_PARTS:
            break
    return leaves


def _is_attached(part: Any) -> bool:
    return bool(part.get_content_disposition() == "attachment" or part.get_filename())


def _content(part: Any) -> str:
    """Returns the text of a part in its declared encoding, or as it seems to be encoded."""
    payload = part.get_payload(decode=True) or b""
    declared = part.get_content_charset()
    if declared and declared not in ("us-ascii", "ascii"):
        try:
            return str(payload.decode(declared))
        except (LookupError, UnicodeDecodeError):
            pass
    text = decoded(payload)
    return text.text if text else ""


def _attachments(message: EmailMessage) -> Iterator[str]:
    names = [part.get_filename() or part.get_content_type() for part in _leaves(message) if _is_attached(part)]
    if names:
        yield "\n".join(["## Attachments", *(f"- {' '.join(str(name).split())}" for name in names)])


def read_outlook(document: BinaryIO, job: Job) -> tuple[str, None]:
    import olefile  # type: ignore[import-untyped]
    from markitdown import StreamInfo
    from markitdown.converters import OutlookMsgConverter

    job.whole()
    try:
        text = OutlookMsgConverter().convert(document, StreamInfo(extension=".msg")).markdown.replace("\0", "")
    except (OSError, ValueError, IndexError, UnicodeError) as error:
        raise Rejected("is damaged, or not complete") from error
    document.seek(0)
    parts = [text]
    with olefile.OleFileIO(document) as container:
        if text.rstrip().endswith("## Content") and container.exists(_HTML_BODY):
            parts.append(markdown(html_of(container.openstream(_HTML_BODY).read())))
        folders = sorted({path[0] for path in container.listdir() if path[0].startswith("__attach")})
        names = [name for folder in folders if (name := _file_name(container, folder))]
        parts += ["\n".join(["## Attachments", *(f"- {name}" for name in names)])] if names else []
    return joined(parts), None


def _file_name(container: Any, folder: str) -> str:
    for tag in _SUBJECT_OF_FILE:
        if container.exists(stream := f"{folder}/__substg1.0_{tag}"):
            raw = container.openstream(stream).read()
            text = raw.decode("utf-16-le", "replace") if tag.endswith("F") else raw.decode("cp1252", "replace")
            return " ".join(text.replace("\0", "").split())
    return ""
