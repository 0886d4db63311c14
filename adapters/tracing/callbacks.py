"""LangSmith and Langfuse as LangChain callbacks. They belong at the root of an invocation only."""

from __future__ import annotations

import contextvars
import importlib
from collections.abc import Mapping
from typing import Any

import langsmith
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import LangChainTracer
from langchain_core.tracers.schemas import Run

from adapters.tracing import asked
from adapters.tracing.asked import LangfuseTarget, LangSmithTarget
from adapters.tracing.flush import flush
from core.config.redaction import redactor
from core.config.settings import Config, Tracing
from core.errors import Invalid

ROOT = "lead-agent"
"""Name of a trace without an assistant."""
FLUSH_SECONDS = 5.0
_clients: dict[LangSmithTarget | LangfuseTarget, Any] = {}
"""Clients by target: each has a thread and a queue of its own."""
_in_force: LangSmithTarget | None = None


class _Tracer(LangChainTracer):
    """A tracer that also redacts the model's arguments, which the client's anonymizer does not get."""

    def _start_trace(self, run: Run) -> None:
        run.extra, run.serialized = redactor.value(run.extra), redactor.value(run.serialized)
        super()._start_trace(run)


def check(settings: Tracing) -> None:
    """Raises `Invalid` if an enabled target is incomplete, or if its package is missing."""
    asked.langsmith(settings.langsmith)
    if asked.langfuse(settings.langfuse):
        _langfuse_package()


def callbacks(config: Config) -> list[BaseCallbackHandler]:
    """Returns new handlers for an invocation; none if tracing is off. Raises `Invalid` if an enabled target is
    incomplete, or if its package is missing: call it once at the start to find out.
    """
    handlers: list[BaseCallbackHandler] = []
    langsmith_target = asked.langsmith(config.tracing.langsmith)
    if langsmith_target or asked.decided(config.tracing.langsmith):
        _switch(langsmith_target)
    if langsmith_target:
        handlers.append(_Tracer(project_name=langsmith_target.project, client=_langsmith(langsmith_target)))
    if langfuse_target := asked.langfuse(config.tracing.langfuse):
        handlers.append(_langfuse(langfuse_target))
    return handlers


def metadata(
    config: Config,
    *,
    thread: str,
    run: str,
    user: str,
    assistant: str | None = None,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the metadata of a trace. `options` are the agent's, by DeerFlow's names (`agent_name`,
    `thinking_enabled` …). `extra` is the caller's, which may set Langfuse's keys, but no ids and no options.
    """
    environment = asked.environment(config.tracing)
    tags = [f"{name}:{value}" for name, value in (("env", environment), ("model", model)) if value]
    langfuse = {
        "langfuse_session_id": thread,
        "langfuse_user_id": user,
        "langfuse_trace_name": assistant or ROOT,
        "langfuse_tags": tags,
    }
    fields = {"thread_id": thread, "run_id": run, "user_id": user, "assistant_id": assistant, "model_name": model}
    plain = {key: value for key, value in (extra or {}).items() if _plain(value)}
    return {**langfuse, **plain, **(options or {}), **{key: value for key, value in fields.items() if value}}


def invocation(config: Config, **about: Any) -> RunnableConfig:
    """Returns additional configuration of a traced invocation; empty if tracing is off. `about` as in `metadata`."""
    handlers = callbacks(config)
    if not handlers:
        return {}
    trace = metadata(config, **about)
    return {
        "callbacks": handlers,
        "metadata": trace,
        "tags": list(trace["langfuse_tags"]),
        "run_name": trace["langfuse_trace_name"],
    }


async def close() -> None:
    """Sends the remaining traces, up to `FLUSH_SECONDS`."""
    await flush([client.flush for client in _clients.values()], FLUSH_SECONDS)


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _switch(target: LangSmithTarget | None) -> None:
    """Configures LangChain's own tracing, which reads the environment and adds handlers, for the same target."""
    global _in_force
    if target and target == _in_force:
        return
    settings: dict[str, Any] = {"enabled": False}
    if target:
        settings = {"enabled": True, "project_name": target.project, "client": _langsmith(target)}
    contextvars.copy_context().run(lambda: langsmith.configure(**settings))  # for all, and not for this task alone
    _in_force = target


def _langsmith(target: LangSmithTarget) -> Any:
    if target not in _clients:
        _clients[target] = langsmith.Client(api_url=target.endpoint, api_key=target.api_key, anonymizer=redactor.value)
    return _clients[target]


def _masked(*, data: Any, **_: Any) -> Any:
    return redactor.value(data)


def _langfuse(target: LangfuseTarget) -> BaseCallbackHandler:
    client, handlers = _langfuse_package()
    if target not in _clients:
        keys = {"public_key": target.public_key, "secret_key": target.secret_key}
        _clients[target] = client.Langfuse(**keys, host=target.base_url, mask=_masked)
    handler: BaseCallbackHandler = handlers.CallbackHandler(public_key=target.public_key)
    return handler


def _langfuse_package() -> tuple[Any, Any]:
    try:
        return importlib.import_module("langfuse"), importlib.import_module("langfuse.langchain")
    except ImportError as error:
        raise Invalid("tracing.langfuse: it is on and its package is missing; pip install langfuse") from error
