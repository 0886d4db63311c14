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
    """Ask the person something that you must know before you go on. Your work stops until they answer.

    Ask before you begin, not in the middle, and only when
    - missing_info: something needed is not there: a file, a place, a number, a name;
    - ambiguous_requirement: the request can be understood in ways that lead to different results;
    - approach_choice: there are several good ways, and the choice between them is the person's;
    - risk_confirmation: what comes next destroys something, costs something, or cannot be undone;
    - suggestion: you have a proposal and want a yes before you follow it.

    Do not ask what you can find out yourself, or what hardly matters: decide, and say what you assumed. Ask one thing
    at a time, call no other tool beside it, and do not repeat the question in your answer.

    Args:
        question: The question: short, and clear by itself.
        clarification_type: Why you ask.
        context: What one must know to answer, if the conversation does not say it.
        options: Answers to choose from; the person may always answer something else.
        fields: For several values at once, a form instead of options: a list of objects with `name`, `label`, `type`
            (text, textarea, number, select, multi_select, checkbox or date) and, where they apply, `required`,
            `placeholder`, and `options` (texts, for select and multi_select).
    """
    raise Invalid("Nobody can be asked here. Decide with your best judgement, and say what you assumed.")
