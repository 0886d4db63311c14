"""Shows which skill a request would load: python3 triggers.py SKILLS_FOLDER [MORE_FOLDERS] [--prompt "…"].

Without --prompt it runs all examples/cases.yaml. It compares the words of requests and descriptions; rare words count
more. A model understands more than this; a description that fails here is vague, or names another skill's work.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

try:
    import yaml
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pyyaml", file=sys.stderr)
    sys.exit(3)

COMMON = """
a about after all an and any are as at be before by can do does for from give has have help here how i if in into is
it its last make me my new next not of on one or our out over please set show so some tell that the their them then
there these this three to two up us use user users want wants was we what when where which who why with without write
you your
"""
THRESHOLD = 4.0
"""Least weight of the words in common: one word is never enough."""
_STOP = frozenset(COMMON.split())
_WORD = re.compile(r"[a-z][a-z0-9]+")
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "es", "ed", "er", "s", "y", "e")
_NOT = re.compile(r"\bnot for\b.*", re.IGNORECASE | re.DOTALL)


def stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


def words(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP]


def weights(descriptions: Mapping[str, str]) -> dict[str, float]:
    """Returns what each word tells: much if few descriptions have it, from 2 to 3.75, however many there are."""
    counts = Counter(word for text in descriptions.values() for word in set(words(text)))
    most = max(len(descriptions), 2)
    return {word: 2.0 + 1.75 * math.log(most / count) / math.log(most) for word, count in counts.items()}


def scores(prompt: str, descriptions: Mapping[str, str]) -> dict[str, float]:
    """Returns the weight of the words that each description shares with the request, less those of its `Not for`."""
    weight, request = weights(descriptions), set(words(prompt))
    result = {}
    for name, text in descriptions.items():
        positive = set(words(_NOT.sub("", text))) | set(words(name.replace("-", " ")))
        negative = set(words(" ".join(_NOT.findall(text)))) - positive
        result[name] = sum(weight.get(w, 0.0) for w in request & positive) - sum(
            weight.get(w, 0.0) for w in request & negative
        )
    return result


def chosen(prompt: str, descriptions: Mapping[str, str]) -> str | None:
    """Returns the skill that fits best, None if none fits well."""
    ranked = sorted(scores(prompt, descriptions).items(), key=lambda pair: (-pair[1], pair[0]))
    return ranked[0][0] if ranked and ranked[0][1] >= THRESHOLD else None


def load(folders: Sequence[Path]) -> dict[str, Path]:
    skills = {}
    for folder in folders:
        paths = [folder / "SKILL.md"] if (folder / "SKILL.md").is_file() else sorted(folder.glob("*/SKILL.md"))
        skills |= {path.parent.name: path.parent for path in paths}
    return skills


def description(folder: Path) -> str:
    front = (folder / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    return str(yaml.safe_load(front)["description"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--prompt")
    options = parser.parse_args()
    try:
        skills = load(options.folders)
        descriptions = {name: description(folder) for name, folder in skills.items()}
    except (OSError, KeyError, IndexError, TypeError, yaml.YAMLError) as error:
        print(f"a skill cannot be read: {error}", file=sys.stderr)
        return 2
    if options.prompt:
        for name, score in sorted(scores(options.prompt, descriptions).items(), key=lambda pair: -pair[1]):
            print(f"{score:5.1f} {name}")
        print(f"loads: {chosen(options.prompt, descriptions) or 'none'}")
        return 0
    wrong = count = 0
    for name, folder in skills.items():
        path = folder / "examples" / "cases.yaml"
        for case in yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else ():
            count += 1
            skill = chosen(case["prompt"], descriptions)
            if (skill == name) != case["loads"]:
                wrong += 1
                print(f"{name}: {case['prompt']!r} loads {skill or 'none'}")
    print(f"{count - wrong} of {count} cases as they should")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
