"""Properties of the platform."""

from __future__ import annotations

from sika.channels import Pace, Traits

TRAITS = Traits(
    name="slot",
    title="Slot",
    credentials=(),
    pace=Pace(edit_seconds=1, group_edit_seconds=1, send_seconds=0, group_per_minute=600, per_second=100),
    answers_can_be_found=False,
)
OPTIONS = ("folder",)
