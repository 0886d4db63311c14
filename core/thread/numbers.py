"""Numbers of messages: what a message's `seq` is, for all who show it.

A number is the log sequence of the fact that brought the message times `PLACES`, plus its place in the fact, as one
fact may bring several (the input of a run, a fork). So it never changes and grows along the thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from core.events import Message
from core.thread.state import Commit, ThreadState
from core.thread.usage import is_summary, messages_in

T = TypeVar("T")

PLACES = 10_000
"""Messages of one fact that have numbers at most: the newest. A power of ten, so that people can read a number."""


def numbered(seq: int, messages: Sequence[T], begin: int) -> Iterator[tuple[int, T]]:
    """Yields the messages of the fact `seq` with their numbers, the first with place `begin`."""
    return enumerate(messages[-(PLACES - begin) :], seq * PLACES + begin)


def numbers(state: ThreadState, index: int, messages: Sequence[Message]) -> dict[str, int]:
    """Returns the numbers of messages of the values at a commit, by id. A message that stands for others that were
    summarised has none. Costs the way back to the oldest of them.
    """
    missing = {str(message.get("id")) for message in messages if message.get("type") != "remove"}
    known: dict[str, int] = {}
    copies: dict[int, dict[str, int]] = {}
    steps = state.chain(index)
    while missing and (at := next(steps, None)) is not None:
        commit = state.commits[at]
        if "messages" not in commit.patch:
            continue
        if is_summary(commit.patch):
            missing.discard(str(commit.patch["messages"][1]["id"]))
        elif here := missing & {str(message.get("id")) for message in messages_in(commit)}:
            if commit.source == "fork" and at not in copies:
                copies = _of_fork(state, commit.seq)
            own = copies[at] if commit.source == "fork" else _of_step(state, commit)
            known |= {identity: own[identity] for identity in here & own.keys()}
            missing -= here
    return known


def number_of(state: ThreadState, message: Message) -> int | None:
    """Returns the number of a message of the state."""
    return numbers(state, state.head, [message]).get(str(message.get("id")))


def _of_step(state: ThreadState, commit: Commit) -> dict[str, int]:
    """Returns the numbers of the messages of a step, by id. Place 0 of a run's start or failure is the run's own."""
    run = state.runs.get(commit.run or "")
    begin = int(run is not None and commit.seq in (run.started_seq, run.ended_seq))
    return {str(message.get("id")): number for number, message in numbered(commit.seq, messages_in(commit), begin)}


def _of_fork(state: ThreadState, seq: int) -> dict[int, dict[str, int]]:
    """Returns the numbers of the messages of each step of a fork, by the step's index."""
    steps = range(state.commits.upto(seq - 1), state.commits.upto(seq))
    brought = [(index, str(message.get("id"))) for index in steps for message in messages_in(state.commits[index])]
    numbers: dict[int, dict[str, int]] = {index: {} for index in steps}
    for number, (index, identity) in numbered(seq, brought, 0):
        numbers[index][identity] = number
    return numbers
