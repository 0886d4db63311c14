"""The part of a conversation that a memory has not read yet (DeerFlow's middleware Memory)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from core.events import Message
from core.thread.messages import UPLOADS_BLOCK, text_of
from core.thread.state import Commit, Run, ThreadState
from core.thread.usage import SUMMARY

MOST_RUNS = 50
"""Runs that are read at once: of more, the newest."""
MOST_CHARACTERS = 1000
"""Characters of a message that are read (DeerFlow's limit)."""
_UPLOADS = re.compile(r"<uploaded_files>.*?</uploaded_files>", re.DOTALL)

Speaker = Literal["User", "Assistant"]


class Utterance(NamedTuple):
    """A message, with the run and the event that brought it."""

    speaker: Speaker
    text: str
    message: str
    run: str
    event: int


class Part(NamedTuple):
    """Ended runs that were not read, and what was said in them."""

    upto: int
    since: str
    """Time at which the first of the runs ended."""
    utterances: Sequence[Utterance]

    @property
    def complete(self) -> bool:
        """True if both have spoken."""
        return {utterance.speaker for utterance in self.utterances} == {"User", "Assistant"}


def ended_after(state: ThreadState, seq: int) -> list[Run]:
    """Returns the runs that ended after a sequence and count, oldest first."""
    newest = takewhile(lambda run: (run.ended_seq or run.requested_seq) > seq, state.runs.newest_first())
    runs = [run for run in newest if run.shown and run.started_seq is not None and (run.ended_seq or 0) > seq]
    return sorted(runs[:MOST_RUNS], key=lambda run: run.ended_seq or 0)


def part(state: ThreadState, runs: Sequence[Run]) -> Part | None:
    """Returns what was said in these runs; None if there are none."""
    if not runs:
        return None
    spoken = [utterance for run in runs for utterance in _without_uploads(list(_of_run(state, run)))]
    return Part(max(run.ended_seq or 0 for run in runs), min(run.updated_at for run in runs), spoken)


def _of_run(state: ThreadState, run: Run) -> Iterator[Utterance]:
    commits, first = state.commits, run.started_seq or 0
    for index in range(commits.upto(first - 1), commits.upto(run.ended_seq or first)):
        if commits[index].run == run.id:
            yield from _of_commit(commits[index], run, own=run.before >= 0)


def _of_commit(commit: Commit, run: Run, *, own: bool) -> Iterator[Utterance]:
    """Yields what a commit added. `own`: a client may have sent the conversation again, so only the last question of
    an input counts.
    """
    messages = commit.patch.get("messages")
    spoken = [m for m in messages if isinstance(m, dict) and _speaker(m)] if isinstance(messages, list) else []
    if own and commit.source == "input":
        spoken = [message for message in spoken if message["type"] == "human"][-1:]
    for message in spoken:
        speaker = _speaker(message)
        assert speaker
        yield Utterance(speaker, plain(message), str(message.get("id")), run.id, commit.seq)


def _speaker(message: Message) -> Speaker | None:
    """Returns the speaker of a message that people see; None for others, and for calls of tools."""
    extra = message.get("additional_kwargs")
    if message.get("name") == SUMMARY or (isinstance(extra, dict) and extra.get("hide_from_ui")):
        return None
    if message.get("type") == "ai":
        return None if message.get("tool_calls") else "Assistant"
    return "User" if message.get("type") == "human" else None


def plain(message: Message) -> str:
    """Returns the text of a message without the server's list of uploaded files, cut."""
    extra, content = message.get("additional_kwargs"), message.get("content", "")
    written: Any = extra.get(UPLOADS_BLOCK) if isinstance(extra, dict) else None
    if isinstance(written, int) and isinstance(content, list):
        content = content[1:]
    text = text_of(content)
    if isinstance(written, int) and isinstance(content, str):
        text = text[written:]
    return _UPLOADS.sub("", text).strip()[:MOST_CHARACTERS]


def _without_uploads(spoken: Sequence[Utterance]) -> list[Utterance]:
    """Leaves out questions that are nothing but uploads, with the answers to them."""
    utterances: list[Utterance] = []
    dropping = False
    for utterance in spoken:
        dropping = not utterance.text if utterance.speaker == "User" else dropping
        if utterance.text and not dropping:
            utterances.append(utterance)
    return utterances
