"""Documents with faults: one bad part costs that part, and a note; nothing is changed, and the limits hold."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from adapters.documents.local import LocalDocuments
from core.errors import Invalid
from tests.support.faulty import VALUE, generate

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]
ALL = 300
NUMBERS = range(ALL) if os.environ.get("SIKA_LONG") else range(0, ALL, 25)
"""The whole takes some ten minutes; a share of it runs always."""


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_fault_costs_its_part(tmp_path: Path, number: int) -> None:
    faulty = generate(number)

    async def silent(_: str) -> None: ...

    reason, text = "", ""
    try:
        text, _ = await LocalDocuments(tmp_path).text(faulty.name, faulty.content, silent)
    except Invalid as error:
        reason = str(error)
    if reason:
        assert faulty.refusal, f"{faulty.fault}: {reason}"
        assert re.search(faulty.refusal, reason), faulty.fault
        return
    values = set(VALUE.findall(text))
    assert values <= faulty.possible, faulty.fault
    assert faulty.values <= values, faulty.fault
    assert not re.search(r"\bNaN\b|\bNone\b|Unnamed: ", text), faulty.fault
