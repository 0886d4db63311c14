"""The models of the configuration, by name; the demo model if there are none."""

from __future__ import annotations

from typing import Any

import msgspec
from langchain_core.language_models import BaseChatModel

from adapters.models import factory
from adapters.models.demo import BROKEN_LABEL, DemoChatModel
from core.config.load import ConfigSource
from core.config.settings import Model
from core.errors import Invalid

DEMO = "demo"


class Configured:
    """Returns the model for a run from the current configuration."""

    def __init__(self, config: ConfigSource) -> None:
        self._config = config
        self._demo = DemoChatModel()
        self._stand_in = DemoChatModel(label=BROKEN_LABEL)
        """Answers in place of the models of a file that cannot be read."""

    def name(self, requested: str | None) -> str:
        """Returns the requested name if it is configured, else the name of the first model."""
        names = [model.name for model in self._config.current().models]
        return requested if requested in names else names[0] if names else DEMO

    def get(self, name: str, *, thinking: bool, reasoning_effort: str | None) -> BaseChatModel:
        """Returns a model. Raises `Invalid` if it is not configured (any more) or cannot be built."""
        models = {model.name: model for model in self._config.current().models}
        if not models and name == DEMO:
            return self._stand_in if self._config.problem else self._demo
        if name not in models:
            raise Invalid(f"model {name!r} is not configured; there are: {', '.join(models) or 'none'}")
        entry = models[name]
        return factory.build(
            _entry(entry),
            thinking=thinking and entry.supports_thinking,
            reasoning_effort=reasoning_effort if entry.supports_reasoning_effort else None,
        )


def build(model: Model) -> BaseChatModel:
    """Returns the model of an entry for runs without thinking. Raises `Invalid` if it cannot be built."""
    return factory.build(_entry(model), thinking=False, reasoning_effort=None)


class Silent:
    """Stands in for every model in a replay: there the log answers, whatever the configuration is."""

    def __init__(self) -> None:
        self._model = DemoChatModel()  # always the same: agents are compiled once for a model

    def name(self, requested: str | None) -> str:
        return requested or DEMO

    def get(self, name: str, *, thinking: bool, reasoning_effort: str | None) -> BaseChatModel:
        return self._model


def _entry(model: Model) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(model).items() if value is not None}
    return {**fields.pop("extra"), **fields}
