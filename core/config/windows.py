"""Context windows of models, by their providers' names.

`windows.json` is made from LiteLLM's table of models (MIT licence). To renew it:
`make windows TABLE=model_prices_and_context_window.json DATE=2026-11-26`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from core.config.agent import Model
from core.config.load import Config
from core.phrases import counted

TABLE = Path(__file__).with_name("windows.json")
ASSUMED = 128_000
"""The window of a model that nobody knows: most models of these days have at least that. A refusal corrects it."""
SHARE = 0.8
"""The part of a window that a conversation may take. The rest is for the answer and for the next results of tools."""
MOST = 400_000
"""Limit of a conversation in a window of any size: beyond it, each step is dear, and models overlook things."""
LEAST_SHARE = 0.5
"""The part of a window that a conversation may take however long answers may be."""
FAMILIES: Mapping[str, int] = {
    "claude": 200_000, "gpt-6": 400_000, "gpt-5": 272_000, "gpt": 128_000, "o1": 200_000, "o3": 200_000,
    "o4": 200_000, "gemini": 1_000_000, "gemma": 128_000, "deepseek": 128_000, "qwen": 131_072, "glm": 128_000,
    "kimi": 128_000, "grok": 131_072, "mistral": 128_000, "codestral": 256_000, "devstral": 128_000,
    "minimax": 200_000, "llama": 128_000, "nova": 300_000, "command": 128_000, "doubao": 128_000, "ernie": 128_000,
}  # fmt: skip
"""Windows that the newer models of a family have at least, for those that are newer than the table."""
_DATED = re.compile(r"[-@](?:20\d{2}-?\d{2}-?\d{2}|latest|default|preview|exp|\d{2}-\d{2}|\d{4})$")
_VERSION = re.compile(r"-v\d+(?::\d+)?(?::\d+k)?$")
_VENDOR = re.compile(
    r"^(?:(?:us|eu|apac|global|jp|au)\.)?(?:anthropic|amazon|meta|mistral|cohere|deepseek|qwen|openai)\."
)
_BOUNDARY = "-.:@_"
_NUMBERED = re.compile(r"[a-z].*\d")
OWN = ("mistral", "deepseek", "xai", "moonshot", "zai", "dashscope", "gemini", "minimax", "cohere_chat")
"""Providers of their own models in LiteLLM's table, where the names of OpenAI's and Anthropic's have no provider."""
CHAT = ("chat", "responses", "completion")


class Window(NamedTuple):
    """The context window of a model in tokens. `answer`: those that are kept free for its answer."""

    tokens: int = ASSUMED
    answer: int = 0
    source: str = "assumed"
    """`configured`, `learned` (from a refusal of the provider), `table`, or `assumed`."""

    @property
    def limit(self) -> int:
        """The tokens of a conversation from which on it is summarised."""
        room = max(self.tokens - self.answer, self.tokens * LEAST_SHARE)
        return int(min(self.tokens * SHARE, room, MOST))


def window_of(config: Config, name: str | None, learned: int | None = None) -> Window:
    """Returns the window of a configured model. `learned` is what its provider said in a refusal."""
    entry = next((model for model in config.models if model.name == name), None)
    if entry is None:
        return Window(learned, 0, "learned") if learned else Window()
    tokens, answer = window_in_table(entry.model) or (ASSUMED, 0)
    source = "table" if window_in_table(entry.model) else "assumed"
    if sizes := [size for size in (entry.context_window, _requested(entry)) if size]:
        tokens, source = min(sizes), "configured"
    if learned and (source != "configured" or learned < tokens):
        tokens, source = learned, "learned"
    return Window(tokens, _answer(entry, answer), source)


def _requested(entry: Model) -> int | None:
    """Returns the window that requests to Ollama ask for (`num_ctx`): it drops the beginning of what is longer."""
    value = entry.extra.get("num_ctx")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _answer(entry: Model, most: int) -> int:
    """Returns the tokens to keep free. If none are configured, only Anthropic's client asks for the most there is."""
    named = (entry.extra.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    configured = next((value for value in named if isinstance(value, int) and value > 0), 0)
    return configured or (most if "anthropic" in entry.use.lower() else 0)


@lru_cache(1024)
def window_in_table(model: str) -> tuple[int, int] | None:
    """Returns window and longest answer of a model by its provider's name, also a dated one, or one of a router.

    A model that is newer than the table has those of the entry with the longest name that its own begins with, or its
    family's window.
    """
    table, name = _table(), plain_name(model)
    if name in table:
        return table[name]
    begins = [key for key in table if name.startswith(key) and name[len(key)] in _BOUNDARY and _NUMBERED.search(key)]
    if begins:
        return table[max(begins, key=len)]
    family = next((family for family in FAMILIES if re.match(rf"{re.escape(family)}(?![a-z])", name)), None)
    return (FAMILIES[family], 0) if family else None


def plain_name(model: str) -> str:
    """Returns a model's name without provider, date and version: `openai/GPT-5.4-2026-03-05` is `gpt-5-4`."""
    name = model.lower().rsplit("/", 1)[-1].removeprefix("@")
    name = _VENDOR.sub("", name)
    for suffix in (":free", ":nitro", ":online", ":exacto", ":thinking", ":beta", ":extended"):
        name = name.removesuffix(suffix)
    shorter = _VERSION.sub("", name)
    while (without := _DATED.sub("", shorter)) != shorter:
        shorter = without
    return re.sub(r"(?<=\d)[.](?=\d)", "-", shorter)


@cache
def _table() -> Mapping[str, tuple[int, int]]:
    models = json.loads(TABLE.read_text())["models"]
    return {name: (size, answer) for name, (size, answer) in models.items()}


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _entries(table: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    for name, about in table.items():
        size = about.get("max_input_tokens")
        if about.get("mode") in CHAT and isinstance(size, int) and size > 0 and not name.startswith("ft:"):
            yield name, plain_name(name), size, about.get("max_output_tokens") or 0


def table_of(table: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns window and longest answer by plain name: those of the model's own provider, else what most offer."""
    own: dict[str, list[int]] = {}
    others: dict[str, Counter[tuple[int, int]]] = {}
    for name, key, size, answer in _entries(table):
        provider, _, base = name.rpartition("/")
        if provider in OWN or (not provider and (key not in own or key == base)):
            own[key] = [size, answer]
        others.setdefault(key, Counter())[size, answer] += 1
    for key, counts in others.items():
        size, answer = max(counts, key=partial(_agreement, counts))
        own.setdefault(key, [size, answer])
    return dict(sorted(own.items()))


def _agreement(counts: Counter[tuple[int, int]], pair: tuple[int, int]) -> tuple[int, int]:
    return counts[pair], -pair[0]


def main(path: str, date: str) -> None:
    """Writes `windows.json`: one model a line, so that a renewal can be read as a diff."""
    models = table_of(json.loads(Path(path).read_text()))
    about = {"source": "LiteLLM, model_prices_and_context_window.json", "licence": "MIT, © 2023 Berri AI", "date": date}
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(sizes, separators=(',', ':'))}" for name, sizes in models.items()
    )
    head = json.dumps(about, ensure_ascii=False)[:-1]
    TABLE.write_text(f'{head}, "models": {{\n{lines}\n}}}}\n')
    print(f"{counted(len(models), 'model')}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
