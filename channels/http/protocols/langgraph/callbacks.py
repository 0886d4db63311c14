"""The `events` mode: LangChain's callback events, made from facts and previews."""

from __future__ import annotations

from typing import Any

import msgspec

from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.chunks import call_chunk, unfinished
from core.events import Json, Message
from core.runs.previews import Piece
from core.thread.state import ThreadState

GRAPH = "lead_agent"


class Callbacks:
    """`on_…` events of one run; the run is the root chain, tasks are its children."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id

    def chain_start(self, state: ThreadState) -> bytes:
        values = dumps.numbered_values(state.values, state)
        return self._event("on_chain_start", GRAPH, self._run, {"input": values}, [])

    def chain_end(self, state: ThreadState) -> bytes:
        values = dumps.numbered_values(state.values, state)
        return self._event("on_chain_end", GRAPH, self._run, {"output": values}, [])

    def model_start(self, task: str, state: ThreadState) -> bytes:
        messages = [dumps.numbered_values(state.values, state).get("messages", [])]
        return self._event("on_chat_model_start", self._model(state), task, {"input": {"messages": messages}})

    def stream(self, task: str, message: str, piece: Piece, metadata: bytes) -> bytes:
        kwargs = {"reasoning_content": piece.text} if piece.part == "reasoning" else {}
        text = piece.text if piece.part == "text" else ""
        calls = [call_chunk(piece)] if piece.part == "call" else []
        chunk = unfinished({"id": message, "content": text, "additional_kwargs": kwargs}, *calls)
        return self._event("on_chat_model_stream", "model", task, {"chunk": chunk}, metadata=msgspec.Raw(metadata))

    def model_end(self, task: str, message: Message, state: ThreadState) -> bytes:
        return self._event("on_chat_model_end", self._model(state), task, {"output": dumps.head(message, state)})

    def tool_start(self, task: str, name: str, args: Json, state: ThreadState) -> bytes:
        return self._event("on_tool_start", name, task, {"input": args})

    def tool_end(self, task: str, message: Message, state: ThreadState) -> bytes:
        return self._event("on_tool_end", message.get("name") or "tool", task, {"output": dumps.head(message, state)})

    def _model(self, state: ThreadState) -> str:
        run = state.runs.get(self._run)
        return (run.model if run else None) or "model"

    def _event(
        self, event: str, name: str, run_id: str, data: Json, parents: list[str] | None = None, metadata: Any = None
    ) -> bytes:
        above = [self._run] if parents is None else parents
        whole = {"event": event, "name": name, "run_id": run_id, "data": data, "tags": []}
        return dumps.encode({**whole, "metadata": metadata or {"run_id": self._run}, "parent_ids": above})
