"""The skills that bear on a task, best first: words of the task in names and descriptions (BM25)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from core.memory.words import words
from core.skills.folders import Skill

K, B = 1.2, 0.75
NAME_WEIGHT = 2
"""A word of the name counts as so many of the description."""
MOST_HITS = 8


def search(skills: Iterable[Skill], query: str, limit: int = MOST_HITS) -> list[Skill]:
    """Returns the skills that share words with a query."""
    terms = set(words(query))
    documents = [(skill, Counter(words(f"{skill.name.replace('-', ' ')} " * NAME_WEIGHT + skill.description)))
                 for skill in skills]  # fmt: skip
    if not terms or not documents:
        return []
    mean = sum(counts.total() for _, counts in documents) / len(documents) or 1
    weights = {term: _weight(sum(term in counts for _, counts in documents), len(documents)) for term in terms}
    scores = [(sum(weights[t] * _share(counts, t, mean) for t in terms), skill) for skill, counts in documents]
    best = sorted((entry for entry in scores if entry[0] > 0), key=lambda entry: (-entry[0], entry[1].name))
    return [skill for _, skill in best[:limit]]


def _weight(frequency: int, count: int) -> float:
    return math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))


def _share(counts: Counter[str], term: str, mean: float) -> float:
    return counts[term] * (K + 1) / (counts[term] + K * (1 - B + B * counts.total() / mean))
