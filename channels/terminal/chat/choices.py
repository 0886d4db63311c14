"""Choices of a chat: the model, the agent, the mode and the effort of the next runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from channels.client.aio import AsyncSikaClient
from channels.client.errors import Forbidden, Invalid
from channels.client.options import Overrides
from channels.terminal.text import one_line

Mode = Literal["flash", "thinking", "pro", "ultra"]
MODES: Mapping[str, str] = {
    "flash": "answers at once: no thinking, no plan, no subagents",
    "thinking": "thinks a little before it answers",
    "pro": "thinks, and keeps a list of steps",
    "ultra": "thinks most, keeps a list of steps, and has subagents",
}
"""The modes of the page, with what they mean (`actors.agent.run.options.MODES`)."""
EFFORTS = ("minimal", "low", "medium", "high")
COMMANDS = ("/model", "/agent", "/mode", "/effort")
DEFAULT = "default"
"""The word that takes a choice back."""

Row = tuple[str, ...]


@dataclass(slots=True)
class Choices:
    """Options of the next runs; None is the server's default."""

    model: str | None = None
    agent: str | None = None
    mode: str | None = None
    effort: str | None = None
    plan: bool | None = None
    subagents: bool | None = None

    def overrides(self) -> Overrides:
        """Returns the options that were chosen. A mode decides on thinking, too."""
        options: Overrides = {"thinking_enabled": None} if self.mode else {}
        if self.model:
            options["model_name"] = self.model
        if self.agent:
            options["agent_name"] = self.agent
        if self.mode:
            options["mode"] = cast(Mode, self.mode)
        if self.effort:
            options["reasoning_effort"] = self.effort
        if self.plan is not None:
            options["plan_mode"] = self.plan
        if self.subagents is not None:
            options["subagent_enabled"] = self.subagents
        return options

    async def model_in_force(self, client: AsyncSikaClient) -> Mapping[str, Any]:
        """Returns the model that answers: the chosen one, the agent's, or the server's first; empty if it is none of
        the server's.
        """
        models = (await client.list_models()).get("models") or []
        name = self.model or await self._model_of_agent(client)
        return next((model for model in models if name in (None, model["name"])), {})

    async def _model_of_agent(self, client: AsyncSikaClient) -> str | None:
        if self.agent is None:
            return None
        try:
            agents = (await client.list_agents())["agents"]
        except Forbidden:  # agents are turned off: the run says it
            return None
        return next((agent.get("model") for agent in agents if agent["name"] == self.agent), None)

    async def rows(self, client: AsyncSikaClient, command: str) -> list[Row]:
        """Returns what can be chosen: a mark at the choice in force, the name, and what it is."""
        kind = command.removeprefix("/")
        options = await named_options(client, command)
        chosen = getattr(self, kind) or (options[0][0] if kind == "model" and options else DEFAULT)
        if kind != "model":
            options = [(DEFAULT, "as the server is configured"), *options]
        return [("●" if name == chosen else "", name, about) for name, about in options]

    async def choose(self, client: AsyncSikaClient, command: str, name: str) -> str:
        """Takes a choice; returns the line that says so. Raises `Invalid` with the names that there are."""
        kind = command.removeprefix("/")
        names = [option for option, _ in await named_options(client, command)]
        if name != DEFAULT and name not in names:
            raise Invalid(f"{command}: there is no {one_line(name, 60)!r}; there are: {', '.join([DEFAULT, *names])}")
        setattr(self, kind, None if name == DEFAULT else name)
        return f"{kind} of the next messages: {name}"


async def named_options(client: AsyncSikaClient, command: str) -> Sequence[tuple[str, str]]:
    """Returns the names that a command can choose from, each with a line about it. The first model is the default."""
    match command:
        case "/model":
            return [(str(model["name"]), _about(model)) for model in (await client.list_models()).get("models") or ()]
        case "/agent":
            agents = (await client.list_agents())["agents"]
            return [(str(agent["name"]), one_line(str(agent.get("description") or ""), 80)) for agent in agents]
        case "/mode":
            return list(MODES.items())
    return [(effort, "") for effort in EFFORTS]


def _about(model: Mapping[str, Any]) -> str:
    """Returns the line of a model: what the provider calls it, and what it can do."""
    facts = [str(model["model"])] if model.get("model") not in (None, model["name"]) else []
    facts += [word for word, key in (("thinks", "supports_thinking"), ("sees", "supports_vision")) if model.get(key)]
    return one_line(", ".join(facts), 80)
