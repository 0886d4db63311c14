"""Tool that gives a batch of prompts to subagents."""

from __future__ import annotations

from typing import Literal

from adapters.tools.task import answered, label_of
from core.tools import Result, ToolContext, tool


@tool(effect="idempotent")
async def tasks(
    ctx: ToolContext,
    subagent_type: str,
    description: str = "",
    prompts: list[str] | None = None,
    template: str | None = None,
    input: str | None = None,
    over: Literal["lines", "rows", "files"] | None = None,
) -> Result:
    """Give many prompts of the same kind to subagents, one to each: a bounded number at a time, up to 10000 in all.

    - Give either `prompts`, or a `template` with `input` and `over`, which makes a prompt of each item of the input.
    - Results do not come into this conversation: they are rows of a table, one JSON object in a line for each prompt,
      in their order. You get counts, some examples, and the path of the table. Read parts of it, or use commands.
    - A prompt whose subagent fails is tried again. If many fail, the batch stops.

    Args:
        subagent_type: The type of the subagents.
        description: The work in three to five words, for the person.
        prompts: The prompts. Each must be complete: subagents know nothing else.
        template: A prompt with placeholders: {item}, which is a line or the path of a file, or {column} of a row.
        input: The absolute path of a text or CSV file (with a header), or an absolute glob pattern of files.
        over: What the items are: `lines` of the file that are not blank, `rows` of the CSV file, or `files`.
    """
    source = {"prompts": prompts, "template": template, "input": input, "over": over}
    label = description.strip() or label_of(template or (prompts or [""])[0])
    return await answered(ctx, {"op": "batch", "description": label, "name": subagent_type, "source": source})
