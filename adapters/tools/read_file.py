"""Tool that reads a file of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def read_file(
    ctx: ToolContext,
    path: str,
    start_line: int | None = None,
    end_line: int | None = None,
    line_numbers: bool = False,
    pages: str | int | None = None,
    sheet: str | None = None,
    convert: bool | None = None,
) -> Any:
    """Read a file: lines of a text, or the text of a document (PDF, Word, Excel, PowerPoint, OpenDocument, EPUB,
    e-mail, notebook). It says how much there is, and how to read on. Of an archive it lists the files, of pictures and
    other binary files it says what they are.

    Args:
        path: Absolute path of the file.
        start_line: The first line, counted from 1.
        end_line: The last line, included.
        line_numbers: Put its number and a tab before each line.
        pages: Only these pages of a PDF, slides, sheets or chapters, counted from 1: 3, 2-5, 7-, or 1,4-6.
        sheet: Only the sheet of this name of a workbook.
        convert: false: the source of an e-mail or a notebook; true: the text of an HTML page (in uploads it is the
            default), or the table of a CSV file.
    """
    lines: dict[str, Any] = {"start_line": start_line, "end_line": end_line, "line_numbers": line_numbers}
    parts = {"pages": None if pages is None else str(pages), "sheet": sheet, "convert": convert}
    lines |= {name: value for name, value in parts.items() if value is not None}
    return await ctx.call("sandbox", {"op": "read", "user": ctx.user, "thread": ctx.thread, "path": path} | lines)
