"""Makes the folder of a new skill: python3 new_skill.py NAME --description "…" [--in FOLDER] [--script convert.py]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from check_skill import NAME, RESERVED

SKILL = """\
---
name: {name}
description: {description}
---

# {title}

{{{{What good work of this kind is, in two sentences.}}}}

## Steps

1. {{{{First step, with its command}}}}
2. {{{{How to check the result}}}}
3. {{{{How to deliver it}}}}

## What goes wrong

- {{{{A mistake that people make, and how to see it}}}}
"""
CASES = """\
# Requests as people write them. At least three that should load the skill, and three that should not.
- {{prompt: "{{{{a request}}}}", loads: true}}
- {{prompt: "{{{{a request that is near, and of another skill}}}}", loads: false}}
"""
SCRIPT = '''\
"""{{{{What it does}}}}: python3 {file} INPUT --out OUTPUT."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        text = options.input.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{{options.input}}: {{error}}", file=sys.stderr)
        return 2
    options.out.write_text(text, encoding="utf-8")
    print(f"wrote {{options.out}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--description", required=True, help="what it does, and when to use it")
    parser.add_argument("--in", dest="parent", type=Path, default=Path("/mnt/user-data/workspace/skills"))
    parser.add_argument("--script", action="append", default=[], help="the name of a Python script to begin")
    options = parser.parse_args()
    if not NAME.fullmatch(options.name) or len(options.name) > 64 or options.name in RESERVED:
        print(f"name: {options.name!r} is not of a-z, 0-9 and single hyphens between, at most 64", file=sys.stderr)
        return 2
    folder = options.parent / options.name
    if folder.exists():
        print(f"{folder}: is there already", file=sys.stderr)
        return 2
    (folder / "examples").mkdir(parents=True)
    description = json.dumps(options.description, ensure_ascii=False)  # YAML reads it, too, whatever is in it
    title = options.name.replace("-", " ").capitalize()
    (folder / "SKILL.md").write_text(
        SKILL.format(name=options.name, description=description, title=title), encoding="utf-8"
    )
    (folder / "examples" / "cases.yaml").write_text(CASES.format(), encoding="utf-8")
    for name in options.script:
        target = folder / "scripts" / Path(name).name
        target.parent.mkdir(exist_ok=True)
        target.write_text(SCRIPT.format(file=target.name), encoding="utf-8")
    print(f"made {folder}: replace every {{{{…}}}}, then run check_skill.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
