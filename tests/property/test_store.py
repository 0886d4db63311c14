"""Laws of the store's fold, and that a large store stays cheap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Refused
from core.events import Event, Record, encode, written
from core.user import store
from core.user.store import ItemPut, ItemRemoved, Store, fold

NOW = "2026-06-01T00:00:00.000000+00:00"
PAST = "2026-05-01T00:00:00.000000+00:00"

_SPACES = st.sampled_from([["a"], ["a", "b"], ["c"], []])
_KEYS = st.sampled_from(["k", "l", ""])
_VALUES: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"n": 1}, {"text": "x" * 10}])
_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(ItemPut, namespace=_SPACES, key=_KEYS, value=_VALUES, expires=st.none() | st.sampled_from([PAST, "x"])),
    st.builds(ItemRemoved, namespace=_SPACES, key=_KEYS),
)


def records(events: Sequence[Event]) -> list[Record]:
    def body(n: int, event: Event) -> bytes:
        return encode(event, written(event, id=f"e{n}", kind="store", aggregate_id="u", actor="t", at=NOW))

    return [Record(n, body(n, event), None, event) for n, event in enumerate(events, 1)]


def frozen(state: Store) -> Any:
    return {space: dict(items) for space, items in state.spaces.items()}, state.total, state.size


@given(st.lists(_EVENTS, max_size=30), st.integers(0, 30))
def test_the_fold_is_incremental_and_pure(events: Sequence[Event], cut: int) -> None:
    story = records(events)
    first = fold(story[:cut], Store())
    before = frozen(first)
    whole = fold(story, Store())
    assert fold(story[cut:], first) == whole
    assert frozen(first) == before
    items = [item for space in whole.spaces.values() for item in space.values()]
    assert whole.total == len(items)
    assert whole.size == sum(store.weight(item.value) for item in items)
    assert all(whole.spaces.values())


@given(st.lists(_EVENTS, max_size=30))
def test_it_is_a_dictionary(events: Sequence[Event]) -> None:
    model: dict[tuple[tuple[str, ...], str], Any] = {}
    for event in events:
        assert isinstance(event, ItemPut | ItemRemoved)
        place = (tuple(event.namespace), event.key)
        if isinstance(event, ItemPut):
            model[place] = event.value
        else:
            model.pop(place, None)
    state = fold(records(events), Store())
    assert {(i.namespace, i.key): i.value for s in state.spaces.values() for i in s.values()} == model


def test_states_share_what_does_not_differ() -> None:
    state = fold(records([ItemPut(namespace=[f"n{n % 100}"], key=str(n), value={}) for n in range(10_000)]), Store())
    after = fold(records([ItemPut(namespace=["n1"], key="new", value={})]), state)
    assert after.total == 10_001
    different = [space for space in after.spaces if after.spaces[space] is not state.spaces[space]]
    assert different == [("n1",)]


def test_what_is_over_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_ITEMS", 2)
    old = ItemPut(namespace=["a"], key="old", value={}, expires=PAST)
    state = fold(records([old, ItemPut(namespace=["a"], key="new", value={})]), Store())
    more = ItemPut(namespace=["b"], key="more", value={})
    events = store.put(state, more, NOW)
    assert events == [ItemRemoved(namespace=["a"], key="old"), more]
    full = fold(records(events), state)
    assert full.total == 2
    with pytest.raises(Refused, match="full"):
        store.put(full, ItemPut(namespace=["b"], key="again", value={}), NOW)
    again = ItemPut(namespace=["b"], key="more", value={"n": 1})
    assert store.put(full, again, NOW) == [again]
    monkeypatch.setattr(store, "MOST_BYTES", 10)
    with pytest.raises(Refused, match="full"):
        store.put(full, ItemPut(namespace=["b"], key="more", value={"text": "more than it was"}), NOW)
