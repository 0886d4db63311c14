"""Many short runs: what they cost, how many a second there are, and when the first token comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_least, at_most, median, percentile, ratio

_CPU = {1: at_most(2.2), 50: at_most(1.4), 500: at_most(1.2)}
_PAIRS = 5
_COMPARED = {1: 400, 50: 200}
_SAME = 1.1
"""As far as two measurements of the same code may be apart."""
_SPEED = {1: at_least(0.55), 50: at_least(0.75), 500: at_least(0.85)}


def cpu(lab: Laboratory) -> Iterator[Row]:
    """CPU of all our processes per run, and the time a single run takes longer."""
    for tokens, limit in _CPU.items():
        for concurrency in (1, 10):
            used = lab.cell(tokens, concurrency).cpu
            yield Row(
                f"{tokens} tokens, {concurrency} at a time",
                ratio(used["ours"], used["bare"]),
                limit,
                "ms CPU/run",
                **_medians(used),
            )
    for tokens in _CPU:
        wall = lab.cell(tokens, 1).wall
        more = median(ours - bare for ours, bare in zip(wall["ours"], wall["bare"], strict=True))
        yield Row(
            f"{tokens} tokens: time of a run",
            ratio(wall["ours"], wall["bare"]),
            None,
            "ms",
            **_medians(wall),
            note=f"{more:+.1f} ms",
        )


def throughput(lab: Laboratory) -> Iterator[Row]:
    """Runs a second, each on a fresh thread."""
    for tokens, limit in _SPEED.items():
        for concurrency in (1, 10, 50, 100):
            speed = lab.cell(tokens, concurrency).speed
            yield Row(
                f"{tokens} tokens, {concurrency} at a time",
                ratio(speed["ours"], speed["bare"]),
                limit if concurrency > 1 else None,
                "runs/s",
                **_medians(speed),
            )
        ten, hundred = lab.cell(tokens, 10).speed, lab.cell(tokens, 100).speed
        kept = {kind: ratio(hundred[kind], ten[kind]) for kind in ten}
        yield Row(
            f"{tokens} tokens: speed at 100 against 10",
            kept["ours"],
            at_least(0.9),
            "×",
            ours=kept["ours"],
            bare=kept["bare"],
            sqlite=kept["sqlite"],
        )


def first_token(lab: Laboratory) -> Iterator[Row]:
    """Time to the first token, on a model that takes 20 ms for each."""
    model, runs = "tokens-50-delay-20", 50 if lab.quick else 200
    firsts: dict[str, list[list[float]]] = {"ours": [], "bare": [], "sqlite": []}
    for repetition in range(lab.repetitions):
        lab.say(f"first tokens, {repetition + 1} of {lab.repetitions}")
        firsts["bare"].append(lab.baseline("bare", model, runs=runs, concurrency=10).first_token)
        lab.load(lab.shared, model, 10, 10)
        samples = lab.load(lab.shared, model, runs, 10).samples
        firsts["ours"].append([sample.first_token or 0 for sample in samples])
        if not repetition:
            firsts["sqlite"].append(lab.baseline("sqlite", model, runs=runs, concurrency=10).first_token)
    for percent, limit in ((95, at_most(1.3)), (50, None)):
        found = {kind: [1000 * percentile(sample, percent) for sample in all_] for kind, all_ in firsts.items()}
        yield Row(
            f"p{percent}, 10 at a time, 20 ms a token",
            ratio(found["ours"], found["bare"]),
            limit,
            "ms",
            **_medians(found),
        )


def against(lab: Laboratory, checkout: Path) -> Iterator[Row]:
    """Runs, ten at a time, here and in another checkout (as `bare`), in turn."""
    with lab.sika(checkout=checkout) as other:
        servers = {"bare": other, "ours": lab.shared}
        for tokens in (1, 50):
            cpu, speed, first = (dict[str, list[float]](ours=[], bare=[]) for _ in range(3))
            for pair in range(1 if lab.quick else _PAIRS):
                lab.say(f"{tokens} tokens, pair {pair + 1}")
                for kind, server in servers.items():
                    runs = _COMPARED[tokens] // (10 if lab.quick else 1)
                    done, seconds = lab.timed(server, tokens, runs, 10)
                    cpu[kind].append(1000 * seconds / runs)
                    speed[kind].append(runs / done.wall)
                    first[kind].append(1000 * median(sample.first_token or 0 for sample in done.samples))
            what = f"{tokens} tokens, 10 at a time: "
            yield Row(f"{what}CPU per run", ratio(**cpu), at_most(_SAME), "ms", **_medians(cpu))
            yield Row(f"{what}time to the first token", ratio(**first), at_most(_SAME), "ms", **_medians(first))
            yield Row(f"{what}runs a second", ratio(**speed), at_least(0.9), "runs/s", **_medians(speed))


def _medians(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """`ours`, `bare` and `sqlite` of a row."""
    return {kind: median(values) for kind, values in found.items()}
