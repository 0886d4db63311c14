"""Sessions of work on code."""

from __future__ import annotations

import json

import pytest

from tests.work.session import WORKSPACE, Work

pytestmark = pytest.mark.long(keep=4)

CHECK = """import calc, importlib
bad = [name for name in dir(calc) if name.startswith("f") and getattr(calc, name)() != int(name[1:])]
for name in bad:
    print("FAILED", name)
print(len(bad), "failed")
"""
HARMLESS = [
    ("V=$(python3 -c 'print(6*7)'); echo value=$V", "value=42"),
    ('echo "$(printf abc | wc -c | tr -d " ")"', "3"),
    ("cmp <(printf same) <(printf same) && echo alike", "alike"),
    ("printf packed > p && tar cz p | base64 | base64 -d | tar tz", "p"),
    ("dd if=/dev/zero of=zeros bs=1024 count=4 2>/dev/null && wc -c < zeros", "4096"),
    ("printf 'echo from-a-pipe' | bash", "from-a-pipe"),
    ("cat > setup.sh <<'EOF'\ncurl https://example.org/install | sh\nEOF\nwc -l < setup.sh", "1"),
    ("printf 'env LD_PRELOAD=x\\n' > note && grep -rh 'LD_PRELOAD=' note", "env LD_PRELOAD=x"),
    ("echo $'don\\'t'", "don't"),
    ("true # " + "x" * 12_000 + "\necho after-a-long-comment", "after-a-long-comment"),
    ("rm -rf build && mkdir -p build && touch build/a && rm -rf build && ls | grep -c build || true", "0"),
    ("python3 - <<'EOF'\nimport os\nprint('eval' + 'uated', os.getpid() > 0)\nEOF", "evaluated True"),
]


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.long)])
async def test_rounds_of_edit_and_test(work: Work, rounds: int) -> None:
    session = await work.session(f"{rounds} functions of calc.py are wrong. Mend them until check.py is content.")
    session.puts("workspace/check.py", CHECK)
    session.puts("workspace/calc.py", "".join(f"def f{n}():\n    return {n + 1}\n\n" for n in range(rounds)))
    assert f"def f{rounds - 1}():" in await session.read("calc.py")
    for n in range(rounds):
        text = await session.bash("python3 -B check.py")
        assert f"{rounds - n} failed" in text
        assert f"FAILED f{n}\n" in text
        await session.edit("calc.py", f"def f{n}():\n    return {n + 1}\n", f"def f{n}():\n    return {n}\n")
    assert "0 failed" in await session.bash("python3 -B check.py")
    await session.answers("All are mended.")


async def test_a_migration_over_two_hundred_files(work: Work) -> None:
    session = await work.session("Replace old_call(x) by new_call(x, strict=True) in all modules of app.")
    for n in range(200):
        session.puts(f"workspace/app/m{n:03}.py", f"from lib import old_call\n\nVALUE = old_call({n})\n")
    session.puts("workspace/lib.py", "def new_call(x, *, strict):\n    return x * 2\n")
    listing = await session.glob("**/*.py", "app")
    assert "m000.py" in listing
    assert "m199.py" in listing
    found = await session.bash("grep -rl old_call app | wc -l")
    assert "200" in found
    for first in range(0, 200, 10):
        paths = [f"/mnt/user-data/workspace/app/m{n:03}.py" for n in range(first, first + 10)]
        texts = await session.calls(*(("read_file", {"path": path}) for path in paths))
        assert all(f"VALUE = old_call({n})" in text for n, text in enumerate(texts, first))
        edits = [
            ("str_replace", {"path": f"/mnt/user-data/workspace/app/m{n:03}.py", "old_str": old, "new_str": new})
            for n in range(first, first + 10)
            for old, new in [("import old_call", "import new_call"), (f"old_call({n})", f"new_call({n}, strict=True)")]
        ]
        results = await session.calls(*edits)
        assert not any("Error" in result for result in results), results
    left = await session.grep("old_call", "app")
    assert "no matches" in left.lower()
    code = "import importlib; print(sum(importlib.import_module(f'app.m{n:03}').VALUE for n in range(200)))"
    assert str(2 * sum(range(200))) in await session.bash(f'python3 -c "{code}"')
    await session.answers("200 modules use new_call.")


async def test_a_build_that_fails_fifteen_times(work: Work) -> None:
    session = await work.session("Make `make` work.")
    session.puts("workspace/Makefile", "all:\n\t@sh build.sh\n")
    names = [f"part{n}" for n in range(15)]
    checks = "".join(f"test -f {name} || {{ echo 'build.sh: {name}: missing' >&2; exit 2; }}\n" for name in names)
    session.puts("workspace/build.sh", checks + "echo built\n")
    for name in names:
        text = await session.bash("make")
        assert f"{name}: missing" in text
        await session.write(name, "part\n")
    assert "built" in await session.bash("make")
    await session.answers("It is built.")


async def test_the_same_error_after_fifteen_different_mends(work: Work) -> None:
    """What fails in the same words is still work while something else changes in between."""
    session = await work.session("Find the number for which guess.py is content.")
    session.puts("workspace/guess.py", "import sys\nsys.exit(0 if open('n').read() == '15' else 'wrong number')\n")
    for n in range(15):
        await session.write("n", str(n))
        assert "wrong number" in await session.bash("python3 guess.py")
    await session.write("n", "15")
    assert "wrong" not in await session.bash("python3 guess.py")
    await session.answers("It is 15.")


async def test_a_bisection_of_a_history(work: Work) -> None:
    session = await work.session("Which commit broke value.txt? Use git bisect.")
    made = await session.bash(
        "git init -q repo && cd repo && git config user.email a@b && git config user.name a && "
        "for n in $(seq 1 64); do echo $n > n; test $n -ge 41 && echo bad > value.txt || echo good > value.txt; "
        'git add -A; git commit -qm "commit $n"; done; git rev-list --count HEAD'
    )
    assert "64" in made
    first = (await session.bash("cd repo && git rev-list HEAD | tail -1")).split()[0]
    assert "Bisecting" in await session.bash(f"cd repo && git bisect start HEAD {first}")
    for _ in range(12):
        verdict = "bad" if "bad" in await session.bash("cd repo && cat value.txt") else "good"
        text = await session.bash(f"cd repo && git bisect {verdict}")
        if "is the first bad commit" in text:
            break
    assert "commit 41" in text
    await session.answers("Commit 41 broke it.")


async def test_a_flaky_test_is_run_again_and_again(work: Work) -> None:
    session = await work.session("How often does flaky.py fail? Run it 24 times, one by one.")
    session.puts("workspace/flaky.py", "n = int(open('runs').read()) + 1\nopen('runs', 'w').write(str(n))\n"
                 "print(f'run {n}:', 'FAILED' if n % 6 == 0 else 'ok')\n")  # fmt: skip
    session.puts("workspace/runs", "0")
    failed = 0
    for n in range(1, 25):
        text = await session.bash("python3 flaky.py")
        assert f"run {n}:" in text
        failed += "FAILED" in text
    assert failed == 4
    await session.answers("4 of 24.")


async def test_a_refactoring_by_expressions(work: Work) -> None:
    session = await work.session("Rename the prefix get_ of functions to fetch_, not that of words such as get_away.")
    for n in range(30):
        session.puts(f"workspace/src/f{n}.py", f"def get_item{n}():\n    return 'get_away'\n\nget_item{n}()\n")
    count = await session.grep(r"\bget_item\d+\(", "src", max_results=100)
    assert "f29.py" in count
    await session.bash(r"sed -i -E 's/\bget_(item[0-9]+)\(/fetch_\1(/g' src/*.py")
    assert "60" in await session.bash("cat src/*.py | grep -c fetch_item")
    assert "30" in await session.bash("cat src/*.py | grep -c get_away")
    text = await session.read("src/f7.py")
    assert "def fetch_item7():" in text
    assert "return 'get_away'" in text
    await session.answers("Renamed in 30 files.")


async def test_a_text_that_stands_in_many_places_is_not_replaced(work: Work) -> None:
    session = await work.session("Change the timeout of the second client to 9.")
    block = "client = Client(\n    timeout=5,\n)\n"
    session.puts("workspace/clients.py", f"# first\n{block}# second\n{block}# third\n{block}")
    await session.read("clients.py")
    text = await session.edit("clients.py", "timeout=5", "timeout=9")
    assert "Error" in text
    assert session.file("workspace/clients.py").read_text().count("timeout=5") == 3, "nothing is changed"
    assert all(line in text for line in ("3", "7", "11")), "it says in which lines the text stands"
    old = "# second\nclient = Client(\n    timeout=5"
    await session.edit("clients.py", old, old.replace("5", "9"))
    text = session.file("workspace/clients.py").read_text()
    assert [int(line[-2]) for line in text.splitlines() if "timeout" in line] == [5, 9, 5]
    await session.answers("Changed.")


async def test_a_patch_is_applied_as_a_whole(work: Work) -> None:
    session = await work.session("Apply my patch.")
    session.puts("workspace/a.txt", "one\ntwo\nthree\n")
    session.puts("workspace/b.txt", "one\ntwo\nthree\n")
    patch = "".join(
        f"--- a/{name}.txt\n+++ b/{name}.txt\n@@ -1,3 +1,3 @@\n one\n-{old}\n+TWO\n three\n"
        for name, old in (("a", "two"), ("b", "TWO-IS-NOT-HERE"))
    )
    await session.write("change.patch", patch)
    assert "error: patch failed: b.txt:1" in await session.bash("git apply change.patch")
    assert "two" in await session.read("a.txt")
    await session.edit("change.patch", "TWO-IS-NOT-HERE", "two")
    await session.bash("git apply change.patch && cat a.txt b.txt")
    assert session.file("workspace/b.txt").read_text() == "one\nTWO\nthree\n"
    await session.answers("Applied.")


async def test_rules_of_a_repository_are_shown(work: Work) -> None:
    session = await work.session()
    rules = "# Rules\n\nEvery function of this repository has a name that begins with zebra_.\n"
    session.puts("workspace/AGENTS.md", rules)
    await session.asks("Write a function that adds two numbers.")
    text = "" if session.sees("zebra_") else await session.bash("cat AGENTS.md")
    assert not text, "the model is not shown AGENTS.md of the workspace"
    await session.write("add.py", "def zebra_add(a, b):\n    return a + b\n")
    assert "5" in await session.bash("python3 -c 'import add; print(add.zebra_add(2, 3))'")
    await session.answers("Written.")


async def test_a_long_file_is_read_where_it_matters(work: Work) -> None:
    session = await work.session("What does line 18 750 of big.txt say, and the last one?")
    session.puts("workspace/big.txt", "".join(f"value {n} is {n * n}\n" for n in range(1, 20_001)))
    text = await session.read("big.txt", start_line=18_750, end_line=18_752)
    assert f"value 18750 is {18_750**2}" in text
    assert "value 18749 " not in text
    text = await session.read("big.txt", start_line=19_990)
    assert f"value 20000 is {20_000**2}" in text, "a range that is open at its end begins at its first line"
    assert "value 1 is 1\n" not in text
    text = await session.read("big.txt", start_line=30_000)
    assert "20000" in text.replace(" ", "").replace(",", ""), "how long the file is, is said"
    text = await session.grep("value 12345 ", "big.txt")
    assert str(12_345**2) in text
    await session.answers("Read.")


@pytest.mark.parametrize("part", range(3))
async def test_harmless_commands_are_run(work: Work, part: int) -> None:
    session = await work.session(f"Run these commands, part {part}.")
    for command, truth in HARMLESS[part::3]:
        text = await session.bash(command)
        assert truth in text.splitlines(), f"{command[:80]}: {text[:300]}"
    await session.answers("Run.")


async def test_a_module_is_written_tested_and_measured(work: Work) -> None:
    session = await work.session("Write a module for Roman numerals with unittest tests.")
    await session.write(
        "roman.py",
        "PAIRS = [(1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'), (90, 'XC'), (50, 'L'),\n"
        "         (40, 'XL'), (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')]\n\n\n"
        "def roman(n):\n    text = ''\n    for value, name in PAIRS:\n        while n > value:\n"
        "            text, n = text + name, n - value\n    return text\n",
    )
    await session.write(
        "test_roman.py",
        "import unittest\nfrom roman import roman\n\n\nclass Tests(unittest.TestCase):\n"
        "    def test_some(self):\n        self.assertEqual(roman(1994), 'MCMXCIV')\n\n"
        "    def test_all(self):\n        self.assertEqual(len({roman(n) for n in range(1, 4000)}), 3999)\n",
    )
    text = await session.bash("python3 -m unittest 2>&1")
    assert "FAILED (failures=1)" in text
    await session.edit("roman.py", "while n > value:", "while n >= value:")
    text = await session.bash("python3 -m unittest 2>&1")
    assert "Ran 2 tests" in text
    assert "OK" in text
    await session.answers("Written and tested.")


async def test_a_package_is_split_by_edits_of_several_files(work: Work) -> None:
    """`edit_files`: new files, edits in several files, a refusal that changes nothing, and all of it as JSON text."""
    session = await work.session("Split shapes.py into a package, one module per shape. The tests must pass.")
    names = [f"shape{n}" for n in range(12)]
    session.puts("workspace/shapes.py", "".join(f"def {name}():\n    return {name!r}\n\n\n" for name in names))
    imports = "from shapes import " + ", ".join(names)
    session.puts("workspace/main.py", f"{imports}\n\nfor call in ({', '.join(names)}):\n    print(call())\n")
    before = await session.bash("python3 -B main.py")
    await session.read("main.py")
    edits = [
        {"path": f"{WORKSPACE}/package/{name}.py", "old_str": "", "new_str": f"def {name}():\n    return {name!r}\n"}
        for name in names
    ]
    edits.append({"path": f"{WORKSPACE}/package/__init__.py", "old_str": "", "new_str": ""})
    wrong = {"path": f"{WORKSPACE}/main.py", "old_str": "from forms import", "new_str": ""}
    refusal = await session.call("edit_files", edits=[*edits, wrong])
    assert "main.py: the text to replace was not found" in refusal
    assert not session.file("/mnt/user-data/workspace/package").exists()
    new = "\n".join(f"from package.{name} import {name}" for name in names)
    right = {"path": f"{WORKSPACE}/main.py", "old_str": imports, "new_str": new}
    answer = await session.call("edit_files", edits=json.dumps([*edits, right]))
    assert answer.startswith("Made 14 edits:\n")
    assert answer.count(": created") == 13
    assert await session.bash("rm shapes.py && python3 -B main.py") == before
    unread = json.dumps([{"path": f"{WORKSPACE}/notes", "old_str": "a", "new_str": "b"}])
    session.puts("workspace/notes", "a")
    assert "was not read in this conversation" in await session.call("edit_files", edits=unread)
    assert session.file("/mnt/user-data/workspace/notes").read_text() == "a"
    await session.answers("shapes.py is a package now.")
