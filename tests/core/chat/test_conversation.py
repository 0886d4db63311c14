"""What a conversation of a chat is after its events."""

from __future__ import annotations

from core.chat.facts import DeliveryPlanned, Target
from core.chat.state import Conversation, fold
from tests.support.records import log_of

TARGET = Target("C1")


def test_a_question_whose_message_was_replaced_is_answered_by_no_button_of_it() -> None:
    asked = DeliveryPlanned(plan="asked", purpose="question", target=TARGET, question="q")
    other = DeliveryPlanned(plan="other", purpose="question", target=TARGET, question="r")
    decided = DeliveryPlanned(plan="decided", purpose="notice", target=TARGET, replaces="asked")
    state = fold(log_of(asked, other, decided), Conversation())
    assert {plan: about.question for plan, about in state.plans.items()} == {"asked": "", "other": "r", "decided": ""}
