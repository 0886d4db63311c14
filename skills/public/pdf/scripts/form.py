"""Lists and fills the fields of a form: python3 form.py list a.pdf; form.py fill a.pdf values.json --out b.pdf."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any

from common import Problem, ended, opened
from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject

KINDS = {"/Tx": "text", "/Btn": "button", "/Ch": "choice", "/Sig": "signature"}
READ_ONLY, RADIO, PUSH, MULTILINE = 1, 1 << 15, 1 << 16, 1 << 12


def fields(reader: PdfReader) -> dict[str, dict[str, Any]]:
    """Returns what there is to fill, by name."""
    pages = _pages(reader)
    listed: dict[str, dict[str, Any]] = {}
    for name, entry in (reader.get_fields() or {}).items():
        kind, flags = KINDS.get(str(entry.get("/FT")), "unknown"), int(entry.get("/Ff", 0) or 0)
        if kind == "button":
            kind = "push" if flags & PUSH else "radio" if flags & RADIO else "checkbox"
        if entry.get("/FT") is None or kind == "push":
            continue
        about: dict[str, Any] = {"name": name, "kind": kind, "value": _value(entry.get("/V")), "page": pages.get(name)}
        about |= {"tooltip": str(entry["/TU"])} if entry.get("/TU") else {}
        about |= {"choices": _choices(entry, kind)} if kind in ("choice", "radio", "checkbox") else {}
        whole = entry.indirect_reference.get_object() if entry.indirect_reference else entry
        about |= {"max_length": int(whole["/MaxLen"])} if whole.get("/MaxLen") else {}
        about |= {"read_only": True} if flags & READ_ONLY else {}
        about |= {"multiline": True} if flags & MULTILINE and kind == "text" else {}
        listed[name] = about
    return listed


def _pages(reader: PdfReader) -> dict[str, int]:
    """Returns the first page of each field."""
    pages: dict[str, int] = {}
    for number, page in enumerate(reader.pages, 1):
        for annotation in page.annotations or ():
            widget, names = annotation.get_object(), []
            while widget is not None:
                names += [str(widget["/T"])] if "/T" in widget else []
                widget = widget["/Parent"].get_object() if "/Parent" in widget else None
            pages.setdefault(".".join(reversed(names)), number)
    return pages


def _value(value: Any) -> Any:
    return None if value is None else str(value).removeprefix("/")


def _choices(entry: Any, kind: str) -> list[str]:
    if kind == "choice":
        return [str(option[0] if isinstance(option, list) else option) for option in entry.get("/Opt", ())]
    return [str(state).removeprefix("/") for state in entry.get("/_States_", ()) if state != "/Off"]


def checked(known: dict[str, dict[str, Any]], values: dict[str, Any]) -> dict[str, str]:
    """Returns the values as a PDF has them. Raises `Problem` with all mistakes."""
    wrong, ready = [], {}
    for name, value in values.items():
        field = known.get(name)
        if field is None:
            near = difflib.get_close_matches(name, known, n=1)
            wrong.append(f"{name}: no such field" + (f"; did you mean {near[0]!r}?" if near else ""))
        elif reason := _reason(field, value):
            wrong.append(f"{name}: {reason}")
        elif field["kind"] == "checkbox":
            ready[name] = f"/{field['choices'][0]}" if value in (True, field["choices"][0]) else "/Off"
        else:
            ready[name] = f"/{value}" if field["kind"] == "radio" else str(value)
    if wrong:
        raise Problem("\n".join(wrong))
    return ready


def _reason(field: dict[str, Any], value: Any) -> str:
    kind, choices = field["kind"], field.get("choices", [])
    if field.get("read_only"):
        return "is read-only"
    if kind == "signature":
        return "is a signature, which only its owner can give"
    if kind == "checkbox" and value not in (True, False, *choices):
        return f"true or false, got {value!r}"
    if kind in ("radio", "choice") and choices and value not in choices:
        return f"one of {', '.join(map(repr, choices))}, got {value!r}"
    if kind in ("text", "choice", "radio") and not isinstance(value, str | int | float):
        return f"a text, got {value!r}"
    most = field.get("max_length")
    return f"at most {most} characters, got {len(str(value))}" if most and len(str(value)) > most else ""


def filled(reader: PdfReader, values: dict[str, str]) -> PdfWriter:
    writer = PdfWriter(clone_from=reader)
    for page in writer.pages:
        if page.annotations:
            writer.update_page_form_field_values(page, values, auto_regenerate=False)
    writer.set_need_appearances_writer(True)
    form = writer.root_object.get("/AcroForm")
    if form is not None and "/XFA" in form.get_object():
        del form.get_object()[NameObject("/XFA")]
    return writer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("list", "fill"))
    parser.add_argument("file", type=Path)
    parser.add_argument("values", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--password")
    options = parser.parse_args()
    try:
        reader = opened(options.file, options.password)
        known = fields(reader)
        if options.action == "list":
            print(json.dumps(list(known.values()), indent=1, ensure_ascii=False))
            return 0
        if options.values is None or options.out is None:
            raise Problem("fill needs values.json and --out")
        try:
            values = json.loads(options.values.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Problem(f"{options.values}: {error}") from None
        if not isinstance(values, dict) or not known:
            raise Problem("the file has no fields (references/forms.md)" if not known else "values.json: an object")
        writer = filled(reader, checked(known, values))
    except Problem as problem:
        return ended(problem)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    writer.write(options.out)
    print(f"wrote {options.out}: {len(values)} of {len(known)} fields")
    if left := [name for name, field in known.items() if name not in values and not field["value"]]:
        print(f"still empty: {', '.join(left)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
