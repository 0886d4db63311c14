"""A hundred people watch a hundred answers being written: does anybody see them slower than the model writes?"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.bench.laboratory import Laboratory
from tests.bench.load import run_once
from tests.bench.measure import Row, at_least, median, percentile
from tests.support.model_server import run

_TOKENS, _STREAMS = 100, 100
_MODEL = f"tokens-{_TOKENS}-delay-20"


def streams(lab: Laboratory) -> Iterator[Row]:
    """`the whole stream` is from the connection to the end, all starting at once; `the text` is from its first token
    to its last.
    """
    own = median(_alone(lab.models) for _ in range(1 if lab.quick else 3))
    kept: dict[str, dict[str, list[float]]] = {"whole stream": {}, "text": {}}

    def add(kind: str, totals: list[float], firsts: list[float]) -> None:
        text = own * (_TOKENS - 1) / _TOKENS
        kept["whole stream"].setdefault(kind, []).extend(own / total for total in totals)
        kept["text"].setdefault(kind, []).extend(
            text / (total - first) for total, first in zip(totals, firsts, strict=True)
        )

    for repetition in range(lab.repetitions):
        lab.say(f"{_STREAMS} streams, {repetition + 1} of {lab.repetitions}")
        bare = lab.baseline("bare", _MODEL, runs=_STREAMS, concurrency=_STREAMS)
        add("bare", bare.turn, bare.first_token)
        samples = lab.load(lab.shared, _MODEL, _STREAMS, _STREAMS).samples
        add("ours", [s.total for s in samples], [s.first_token or 0 for s in samples])
    for what, speeds in kept.items():
        for name, percent in (("median", 50), ("p5", 5)):
            found = {kind: percentile(values, percent) for kind, values in speeds.items()}
            yield Row(
                f"speed kept, {what}, {name}",
                found["ours"],
                at_least(0.95),
                "×",
                found["ours"],
                found["bare"],
                note=f"alone, the model takes {own:.2f} s" if what == "whole stream" and percent == 50 else "",
            )


def _alone(models: str) -> float:
    """Seconds the model server takes for one such stream that nothing disturbs."""
    place = urlsplit(models)
    body = {"model": _MODEL, "messages": [{"role": "user", "content": "Hello?"}], "stream": True}
    sample = run(run_once(place.hostname or "", place.port or 80, f"{place.path}/chat/completions", body))
    return sample.total
