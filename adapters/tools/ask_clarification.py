"""Tool that asks the person a question. Intercepted before it runs: the question ends the run, the answer is the next
message.
"""

from __future__ import annotations

from typing import Any, Literal

from core.errors import Invalid
from core.tools import ToolContext, tool


@tool(effect="pure")
async def ask_clarification(
    ctx: ToolContext,
    question: str,
    clarification_type: Literal[
        "missing_info", "ambiguous_requirement", "approach_choice", "risk_confirmation", "suggestion"
    ],
    context: str | None = None,
    options: list[str] | None = None,
    fields: list[dict[str, Any]] | None = None,
) -> str:
    """Ask the person for what only they know or may decide. Your turn ends here; the answer is their next message.

    Not for what you can find out or undo, nor for a choice among good ways: decide, and say what you assumed. Ask one
    thing, beside no other call, and do not repeat the question in your answer.

    Args:
        question: Short, and clear by itself.
        clarification_type: Why you ask.
        context: What one must know to answer, if the conversation does not say it.
        options: Answers to choose from; the person may always answer something else.
        fields: A form, for several values: `{name, label, type, required?, placeholder?, options?}`; `type` is text,
            textarea, number, select, multi_select, checkbox or date.
    """
    raise Invalid("Nobody can be asked here. Decide with your best judgement, and say what you assumed.")
