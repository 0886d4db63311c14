"""Tool that finds lines in files of the sandbox."""

from __future__ import annotations

from typing import Any, Literal

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def grep(
    ctx: ToolContext,
    pattern: str,
    path: str,
    glob: str | None = None,
    type: str | None = None,
    shows: Literal["lines", "files", "counts"] = "lines",
    context: int = 0,
    before: int = 0,
    after: int = 0,
    literal: bool = False,
    case_sensitive: bool = False,
    multiline: bool = False,
    everything: bool = False,
    max_results: int = 100,
) -> Any:
    """Find lines in files by ripgrep. Returns `path:line: text`, how many there are, and what was not searched. A file
    that is named is always searched.

    Args:
        pattern: A regular expression.
        path: Absolute path of a directory or a file.
        glob: Only in files whose path fits, such as `*.{ts,tsx}` or `src/**`; `!*.min.js`: in all others.
        type: Only in files of a type, such as py, js, rust.
        shows: Matching lines, only the paths of their files, or their number in each file.
        context: Lines around each match.
        before: Lines before each match.
        after: Lines after each match.
        literal: Take the pattern as plain text.
        case_sensitive: Tell upper from lower case.
        multiline: Matches may span lines.
        everything: Also in .git, node_modules and caches.
        max_results: Results that are shown.
    """
    about = {"op": "grep", "user": ctx.user, "thread": ctx.thread, "path": path, "pattern": pattern}
    files = {"glob": glob, "type": type, "everything": everything, "shows": shows, "max_results": max_results}
    match = {"literal": literal, "case_sensitive": case_sensitive, "multiline": multiline}
    lines = {"before": max(before, context), "after": max(after, context)}
    return await ctx.call("sandbox", about | files | match | lines)
