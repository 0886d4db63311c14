"""What an account says in tests."""

from __future__ import annotations

from core.chat.facts import Button
from core.chat.port import Content


def question(plan: str) -> Content:
    buttons = (Button("yes", "Yes", "danger"), Button("no", "No"))
    return Content("Really?", buttons=buttons, plan=plan)
