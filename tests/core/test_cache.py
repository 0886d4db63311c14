"""The cache that is bounded in bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.cache import GIANT, GIANTS, ByteCache


def test_two_giants_do_not_evict_each_other() -> None:
    cache = ByteCache[str, int](100)
    cache.put("small", 1, 10)
    for _ in range(3):
        for name in ("a", "b"):
            assert cache.get(name) is None or cache.get(name) == 7
            cache.put(name, 7, 90)
    assert [cache.get(name) for name in ("a", "b", "small")] == [7, 7, 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 500), st.booleans())))
def test_the_bounds_hold(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever is put and dropped: small values within the limit, giants within theirs or one alone."""
    cache, sizes = ByteCache[int, int](100), dict[int, int]()
    for key, size, put in steps:
        if put:
            cache.put(key, size, size)
            sizes[key] = size
            assert cache.get(key) == size
        else:
            cache.drop(key)
            assert cache.get(key) is None
    stored = {key: cache.get(key) for key in cache}
    giants = [sizes[key] for key in stored if sizes[key] * GIANT > 100]
    assert sum(sizes[key] for key in stored) - sum(giants) == cache.size <= 100
    assert sum(giants) <= GIANTS * 100 or len(giants) == 1
