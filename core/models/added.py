"""Models that administrators add beside the configuration file, and the roles that they choose for models.

What the file has wins: a model of its name and a role that it names are its own. Processes follow the one aggregate
and put what it holds into their configuration (`ConfigSource.extend`): an added model is a model like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from anyio import to_thread

from core.config.load import Additions, ConfigSource
from core.config.model_providers import NO_KEY, PROVIDERS
from core.config.redaction import redactor
from core.config.settings import ROLES, Config
from core.errors import Invalid, NotFound, Refused, SikaError
from core.events import Aggregate, Event, Record
from core.identity.seal import Seal
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

log = structlog.get_logger("sika.models")

KIND = "models"
MODELS = Aggregate(KIND, "server")
PURPOSE = "models"
"""Purpose of the seals (`core.identity.seal`)."""
MOST = 50
"""Models that can be added."""
PAUSE_SECONDS = 5.0
"""Until the models are read again, if they could not be."""


class AddedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model beside the file. `provider`: one of those of `sika init`; `api_key` is sealed."""

    name: str
    model: str
    provider: str
    base_url: str | None = None
    api_key: str | None = None
    display_name: str | None = None
    supports_vision: bool = False
    supports_thinking: bool = False


class ModelsConfigured(Event, frozen=True):
    """These are the models beside the configuration file from here on, and the models of roles. `by`: the user who
    changed it; None for a command on the server's machine.
    """

    phrase = Phrase(
        "Models configured",
        "模型已配置",
        "<{models.name}><!models?none beside the file><, by {by}>",
        "<{models.name}><!models?仅文件中的模型><，{by}>",
    )
    models: list[AddedModel]
    roles: Mapping[str, list[str]]
    by: str | None = None


class Added(msgspec.Struct, frozen=True):
    models: Mapping[str, AddedModel] = {}
    roles: Mapping[str, Sequence[str]] = {}
    seq: int = 0


def fold(records: Iterable[Record], state: Added) -> Added:
    for record in records:
        match record.event:
            case ModelsConfigured(models=models, roles=roles):
                state = Added({model.name: model for model in models}, roles, record.seq)
    return state


class AddedModels:
    """The added models. `source`: the configuration that they are put into; without one they are kept only."""

    def __init__(self, events: EventLog, seal: Seal, source: ConfigSource | None = None) -> None:
        self._log, self._seal, self._source = events, seal, source
        self._states = Repository(events, KIND, fold, Added())
        self._applied = 0
        self._applying = asyncio.Lock()

    async def state(self) -> Added:
        """Returns what was added. Raises `Unavailable`."""
        return await self._states.load(MODELS.id)

    async def put(self, model: AddedModel, key: str | None, config: Config, *, by: str, actor: str) -> None:
        """Adds a model, or replaces an added one. `key`: its API key; None keeps that of before, which goes nowhere
        else. Raises `Invalid`, `Refused`.
        """

        def decide(state: Added) -> Added:
            before = state.models.get(model.name)
            _require_free(model.name, config, state)
            sealed = self._seal.seal(key, PURPOSE) if key else None
            if key is None and before is not None:
                if before.api_key and (before.provider, before.base_url) != (model.provider, model.base_url):
                    raise Invalid("api_key: enter it again, as the model is elsewhere now")
                sealed = before.api_key
            models = {**state.models, model.name: msgspec.structs.replace(model, api_key=sealed)}
            if len(models) > MOST:
                raise Refused(f"at most {MOST} models can be added")
            return msgspec.structs.replace(state, models=models)

        redactor.add(*([key] if key else []))
        await self._change(decide, by, actor)

    async def remove(self, name: str, *, by: str, actor: str) -> None:
        """Removes an added model, also from roles. Raises `NotFound`."""

        def decide(state: Added) -> Added:
            if name not in state.models:
                raise NotFound(f"model {name[:80]!r}: none of that name was added")
            roles = {role: [each for each in names if each != name] for role, names in state.roles.items()}
            models = {each: model for each, model in state.models.items() if each != name}
            return msgspec.structs.replace(
                state, models=models, roles={role: names for role, names in roles.items() if names}
            )

        await self._change(decide, by, actor)

    async def choose(self, role: str, names: Sequence[str], config: Config, *, by: str, actor: str) -> None:
        """Chooses the models of a role; none: no choice. Raises `Invalid` for an unknown role or model."""
        if role not in ROLES:
            raise Invalid(f"role: {role[:40]!r} is none; there are: {', '.join(ROLES)}")
        known = [model.name for model in config.models]
        if unknown := [name for name in names if name not in known]:
            raise Invalid(f"models: {unknown[0][:80]!r} is none of the models; there are: {', '.join(known) or 'none'}")

        def decide(state: Added) -> Added:
            if role in config.model_roles and role not in state.roles:
                raise Refused(f"model_roles.{role} stands in the configuration file, which decides it")
            roles = {**state.roles, role: list(dict.fromkeys(names))}
            return msgspec.structs.replace(state, roles={each: chosen for each, chosen in roles.items() if chosen})

        await self._change(decide, by, actor)

    async def _change(self, decide: Callable[[Added], Added], by: str, actor: str) -> None:
        """Appends what `decide` makes of the state, once it was tried as configuration."""
        after = decide(await self.state())
        if self._source is not None:
            await to_thread.run_sync(self._source.tried, self._additions(after))

        def decision(state: Added) -> Sequence[Event]:
            now = decide(state)
            return [ModelsConfigured(models=list(now.models.values()), roles={**now.roles}, by=by)]  # type: ignore[dict-item]

        await self._states.decide(MODELS.id, decision, actor=actor)
        await self.apply()

    async def additions(self) -> Additions | None:
        """Returns what was added as the configuration takes it; None if nothing ever was. Raises `Unavailable`."""
        state = await self.state()
        return self._additions(state) if state.seq else None

    # ── in force ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def apply(self) -> None:
        """Puts what was added into the configuration. Raises `Unavailable`."""
        async with self._applying:
            state = await self.state()
            if self._source is not None and state.seq != self._applied:
                await to_thread.run_sync(self._source.extend, self._additions(state))
                self._applied = state.seq

    async def follow(self) -> None:
        """Applies what any process changes, for ever."""
        with self._log.listen(MODELS) as listener:
            while True:
                try:
                    await self.apply()
                    await listener.take()
                except SikaError as error:
                    log.warning("added models not read", again_in=PAUSE_SECONDS, error=str(error))
                    await asyncio.sleep(PAUSE_SECONDS)

    def _additions(self, state: Added) -> Additions:
        entries = [entry for model in state.models.values() if (entry := self._entry(model)) is not None]
        return Additions(entries, state.roles, str(state.seq))

    def _entry(self, model: AddedModel) -> dict[str, Any] | None:
        """A model as the file would have it; None if its key cannot be opened, or this version has no such provider."""
        if (provider := PROVIDERS.get(model.provider)) is None:
            log.warning("an added model is left out: no such provider", model=model.name, provider=model.provider)
            return None
        entry: dict[str, Any] = {"name": model.name, "model": model.model}
        optional = {
            "use": provider.use or None,
            "base_url": model.base_url or provider.base_url,
            "display_name": model.display_name,
            "supports_vision": model.supports_vision or None,
            "supports_thinking": model.supports_thinking or None,
        }
        entry |= {name: value for name, value in optional.items() if value is not None}
        try:
            key = self._seal.open(model.api_key, PURPOSE) if model.api_key else ""
        except SikaError as error:
            log.warning("an added model is left out: enter its key again", model=model.name, error=str(error))
            return None
        # without a key the library would send that of the environment, and wherever the address says
        if key or model.base_url or not provider.use:
            entry["api_key"] = key or NO_KEY
        return entry

    def trial(self, model: AddedModel, key: str | None, state: Added) -> Additions:
        """Returns a model alone as configuration, to be tried; without a key with that of the added one."""
        before = state.models.get(model.name)
        same = before is not None and (before.provider, before.base_url) == (model.provider, model.base_url)
        redactor.add(*([key] if key else []))
        sealed = self._seal.seal(key, PURPOSE) if key else before.api_key if before is not None and same else None
        entry = self._entry(msgspec.structs.replace(model, api_key=sealed))
        return Additions([entry] if entry else [], {}, "")


def _require_free(name: str, config: Config, state: Added) -> None:
    """Raises `Refused` if the file has a model of that name."""
    if name not in state.models and any(model.name == name for model in config.models):
        raise Refused(f"name: {name[:80]} is a model of the configuration file, which decides it")
