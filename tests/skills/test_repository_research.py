"""A repository with a known history and structure: what is told of it is what was put in."""

from __future__ import annotations

import json

import pytest

from tests.skills.conftest import Desk

pytestmark = pytest.mark.anyio
S = "python3 $S/repository-research/scripts"
FILES = {
    "pyproject.toml": (
        '[project]\nname = "shop"\ndependencies = ["httpx>=1", "rich"]\n[project.scripts]\nshop = "shop.app:main"\n'
    ),
    "Makefile": "PYTHON := python3\ntest:\n\tpytest\nserve:\n\tpython -m shop\n",
    "LICENSE": "MIT License\n\nPermission is hereby granted\n",
    "README.md": "# Shop\n\ncheckout sells\n",
    "shop/app.py": "from shop.cart import checkout\n\n\ndef main():\n    checkout()\n",
    "shop/__main__.py": 'from shop.app import main\n\nif __name__ == "__main__":\n    main()\n',
    "shop/cart.py": "def checkout():\n    return 1\n",
    "web/page.ts": "export const total = 1\n",
    "tests/test_cart.py": "def test_it():\n    assert checkout()\n",
    "node_modules/x/index.js": "checkout()\n" * 500,
    "package-lock.json": "{}\n",
}


@pytest.fixture
async def repo(desk: Desk) -> Desk:
    for name, text in FILES.items():
        desk.write(f"repo/{name}", text)
    steps = ["cd repo && git init -qb main && git add -Af ."]
    for number, who in enumerate(("Ada", "Ada", "Bob", "Ada")):
        date = f"2025-0{number + 1}-10T12:00:00Z"
        steps += [f"echo '# {number}' >> shop/cart.py", f"echo '// {number}' >> web/page.ts", "git add -A"]
        dates = f"GIT_AUTHOR_DATE={date} GIT_COMMITTER_DATE={date}"
        steps += [f"{dates} git -c user.name={who} -c user.email={who}@x.org commit -qm {number}"]
    steps += ["git -c user.name=a -c user.email=a@x.org tag v1.0"]
    await desk.run(" && ".join(steps))
    return desk


async def test_what_it_consists_of(repo: Desk) -> None:
    known = json.loads(await repo.run(f"{S}/survey.py repo --json"))
    assert (known["files"], known["foreign"]) == (11, 2)
    assert known["lines"]["Python"] == 3 + 3 + 6
    assert known["test_lines"] == {"Python": 2}
    assert known["folders"] == {"shop": 12, "web": 5, "tests": 2}
    assert known["entries"] == ["pyproject.toml: shop = shop.app:main", "shop/__main__.py:3"]
    assert known["dependencies"] == {"pyproject.toml": ["httpx", "rich"]}
    assert list(known["commands"]) == ["Makefile: make test", "Makefile: make serve"]
    assert known["licence"] == "MIT (LICENSE)"
    assert "licence: MIT (LICENSE)" in await repo.run(f"{S}/survey.py repo")
    assert "no such folder" in await repo.run(f"{S}/survey.py nowhere", 2)


async def test_what_its_history_tells(repo: Desk) -> None:
    known = json.loads(await repo.run(f"{S}/history.py repo --json"))
    assert (known["commits"], known["first"], known["last"]) == (4, "2025-01-10", "2025-04-10")
    assert known["people"] == {"Ada": 3, "Bob": 1}
    assert known["quarter"] == 3
    assert list(known["hot"])[:2] == ["shop/cart.py", "web/page.ts"]
    assert known["together"] == {"shop/cart.py + web/page.ts": 4}
    assert "made 75%" in await repo.run(f"{S}/history.py repo")
    repo.write("plain/a.py", "x = 1\n")
    assert "is no git repository" in await repo.run(f"{S}/history.py plain", 2)
    assert "1 files" in await repo.run(f"{S}/survey.py plain")
    await repo.run("git clone -q --depth 1 file://$PWD/repo shallow")
    assert "SHALLOW" in await repo.run(f"{S}/history.py shallow")


async def test_definitions_come_before_uses_tests_and_foreign_files(repo: Desk) -> None:
    lines = (await repo.run(f"{S}/find.py repo checkout --limit 8")).splitlines()
    assert lines[0] == "definition: shop/cart.py:1: def checkout():"
    assert [line.split(": ")[0] for line in lines[:6]] == ["definition", "use", "use", "test", "docs", "other"]
    assert "no hits" in await repo.run(f"{S}/find.py repo nothing_like_it", 1)
    assert "unterminated" in await repo.run(f"{S}/find.py repo '('", 2)


async def test_places_that_are_not_there_are_named(repo: Desk) -> None:
    repo.write("good.md", "It begins in `shop/app.py:4`, sells in `cart.py:1-2` and lives in `shop/`.")
    assert "2 of 2 places are there" in await repo.run(f"{S}/check_refs.py good.md repo")
    repo.write("bad.md", "See `shop/app.py:400` and `shop/gone.py`.")
    text = await repo.run(f"{S}/check_refs.py bad.md repo", 1)
    assert "shop/app.py:400: the file has 5 lines" in text
    assert "shop/gone.py: no such file" in text
    repo.write("vague.md", "It is well designed.")
    assert "no places are named" in await repo.run(f"{S}/check_refs.py vague.md repo", 1)
