"""Tool that presents files to the person."""

from __future__ import annotations

from core.errors import Invalid
from core.files.paths import USER_DATA, join, parse, split
from core.tools import Result, ToolContext, tool

OUTPUTS = f"{USER_DATA}/outputs"
MOST = 50


@tool(effect="pure")
async def present_files(ctx: ToolContext, filepaths: list[str]) -> Result:
    """Show up to 50 finished files to the person, who can then open and download them. Call it once, when they are as
    they shall be.

    - Only files in /mnt/user-data/outputs: copy others there first.
    - If one of them cannot be shown, none is.

    Args:
        filepaths: The absolute paths of the files.
    """
    if not 0 < len(filepaths) <= MOST:
        raise Invalid(f"filepaths: 1 to {MOST} files at a time")
    paths = list(dict.fromkeys(_normalized(path) for path in filepaths))
    await ctx.call("sandbox", {"op": "files", "user": ctx.user, "thread": ctx.thread, "paths": paths})
    return Result("The person can see these files now:\n" + "\n".join(paths), update={"artifacts": paths})


def _normalized(path: str) -> str:
    """Returns the canonical form of the path. Raises `Invalid` if it is not in the outputs."""
    parts, outputs = parse(path), split(OUTPUTS)
    if parts[: len(outputs)] != outputs or parts == outputs:
        raise Invalid(f"{path}: only files in {OUTPUTS} can be shown; copy it there first")
    return join(parts)
