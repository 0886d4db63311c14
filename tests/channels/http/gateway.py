"""A configuration that tests of the gateway's routes can change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.config.load import Config
from core.config.settings import Model, Pricing
from tests.channels.http.conftest import Settings

PRICED = Model(
    name="m",
    model="provider/m",
    display_name="M",
    supports_thinking=True,
    context_window=1000,
    pricing=Pricing(currency="EUR", input_per_million=2, output_per_million=10, cache_read_per_million=1),
)
OTHER = Model(name="family/n", model="n", description="another one")


@dataclass
class Changeable(Settings):
    sections: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Config:
        return msgspec.structs.replace(super().__call__(), **self.sections)
