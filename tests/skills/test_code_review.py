"""A repository with planted defects: which are suspected, and that a review is held to what stands there."""

from __future__ import annotations

import pytest

from tests.skills.conftest import Desk

pytestmark = pytest.mark.anyio
S = "python3 $S/code-review/scripts"
BEFORE = "def search(db, name):\n    return []\n"
SECRET = "abcd1234efgh5678"
AFTER = f'''\
import pickle, requests, subprocess, time, yaml
API_KEY = "{SECRET}"

async def search(db, name, filters=[]):
    try:
        time.sleep(1)
    except Exception:
        pass
    return db.execute(f"SELECT * FROM orders WHERE customer = '{{name}}'").fetchall()

def ping(path):
    subprocess.run("ping " + path, shell=True)
    assert (path, "must be there")
    if path is "here": return pickle.loads(path)
    return requests.get(path), yaml.load(path), eval(path)
'''
FINE = """\
import requests, subprocess

def fine(db, name, path, filters=None):
    db.execute("SELECT * FROM orders WHERE customer = ?", (name,))
    subprocess.run(["ping", path], timeout=5)
    with open(path, "rb") as file:
        return file.read(), requests.get(path, timeout=5)
"""
SCRIPT = "box.innerHTML = name;\nif (a == b) { eval(a) }\nif (a === b) { box.textContent = a }\n"
GIT = "git -c user.name=a -c user.email=a@example.org"
REVIEW = """\
# Review

### critical: injection `orders.py:9`

```python
return db.execute(f"SELECT * FROM orders WHERE customer = '{name}'").fetchall()
```

Fix: pass parameters.
"""


@pytest.fixture
async def repo(desk: Desk) -> Desk:
    desk.write("repo/orders.py", BEFORE)
    await desk.run(f"cd repo && git init -qb main && git add . && {GIT} commit -qm base && git checkout -qb search")
    for name, text in (("orders.py", AFTER), ("fine.py", FINE), ("page.js", SCRIPT)):
        desk.write(f"repo/{name}", text)
    await desk.run(f"cd repo && git add . && {GIT} commit -qm search")
    return desk


async def test_planted_defects_are_suspected_and_good_code_is_not(repo: Desk) -> None:
    text = await repo.run(f"{S}/scan.py repo --base main")
    places = {line.split(": ")[0] for line in text.splitlines() if line.startswith(("orders", "fine", "page"))}
    assert places == {f"orders.py:{line}" for line in (2, 4, 6, 7, 9, 12, 13, 14, 15)} | {"page.js:1", "page.js:2"}
    for reason in (
        "a secret",
        "shared by all calls",
        "blocks the event loop",
        "errors vanish",
        "injection",
        "always true",
    ):
        assert reason in text
    assert SECRET not in text


async def test_the_changes_are_listed_by_risk(repo: Desk) -> None:
    text = await repo.run(f"{S}/changes.py repo")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows[0][1] == "orders.py"
    assert "No test was changed." in text
    await repo.run("git -C repo diff main...search > change.diff")
    assert "3 files, +25 -2" in await repo.run(f"{S}/changes.py --diff change.diff")
    assert "page.js:1: high" in await repo.run(f"{S}/scan.py --diff change.diff")


async def test_a_review_must_stand_on_the_code(repo: Desk) -> None:
    repo.write("review.md", REVIEW)
    assert "0 problems" in await repo.run(f"{S}/check_review.py review.md repo --base main")
    for old, new, reason in (
        ("orders.py:9", "orders.py:99", "has no line 99"),
        ("orders.py:9", "models.py:9", "models.py is not part of the change"),
        ("return db.execute", "return connection.execute", "does not stand near line 9"),
        ("Fix: pass parameters.", "Bad.", "has no line 'Fix: …'"),
        ("critical:", "terrible:", "terrible is not one of"),
    ):
        repo.write("review.md", REVIEW.replace(old, new))
        assert reason in await repo.run(f"{S}/check_review.py review.md repo --base main", 1)


async def test_a_repository_without_changes_and_none_at_all(repo: Desk) -> None:
    assert "there are no changes" in await repo.run(f"{S}/changes.py repo --base search", 2)
    assert "not a git repository" in await repo.run(f"mkdir x && {S}/changes.py x", 2)


SUSPECT = {
    "a.py": [
        'import os; os.system("rm " + x)',
        'os.popen(f"ls {x}")',
        "subprocess.getoutput(x)",
        'subprocess.run(["sh", "-c", x])',
        "asyncio.create_subprocess_shell(x)",
    ],
    "b.js": [
        'require("child_process").exec("rm " + x)',
        "const cp = 1; cp.execSync(`ls ${x}`)",
        "exec(command)",
        "spawn(x, [], { shell: true })",
        'setTimeout("go(" + x + ")", 5)',
        'db.query("SELECT * FROM t WHERE a = " + x)',
    ],
    "c.go": [
        'exec.Command("sh", "-c", "rm "+x)',
        'db.Query(fmt.Sprintf("SELECT %s", x))',
        'db.QueryRowContext(ctx, "SELECT "+x)',
        "value, _ := strconv.Atoi(x)",
        "return template.HTML(x)",
    ],
    "d.java": ['Runtime.getRuntime().exec("rm " + x);', 'stmt.executeQuery("SELECT " + x);', "catch (Exception e) {}"],
    "e.rb": ['system("rm #{x}")', 'User.where("name = #{x}")', "Marshal.load(x)"],
    "f.php": ['shell_exec("rm " . $x);', "unserialize($x);", "echo $_GET['a'];"],
    "g.rs": ["let a = x.unwrap();", "unsafe { go() }", 'Command::new("sh")'],
    "h.sh": ['eval "$x"', "curl -s https://example.org/i | sudo bash", "rm -rf $DIR/"],
}
CLEAN = {
    "a.py": ['os.system("clear")', 'subprocess.run(["ls", x])', 'subprocess.run(["sh", "-c", "true"])'],
    "b.js": ["const m = /a/.exec(x)", 'execFile("ls", [x])', 'child_process.exec("ls")', 'db.query("SELECT ?", [x])'],
    "c.go": [
        'exec.Command("ls", x)',
        'db.Query("SELECT ?", x)',
        "value, err := strconv.Atoi(x)",
        "for _, v := range x {",
    ],
    "d.java": ["new ProcessBuilder(list).start();", 'c.prepareStatement("SELECT ?");'],
    "e.rb": ['system("rm", x)', "User.where(name: x)"],
    "f.php": ["$q = $db->prepare('SELECT ?');"],
    "g.rs": ["let a = x?;", 'Command::new("ls")'],
    "h.sh": ['rm -rf "${DIR:?}/build"', "curl -s https://example.org/i -o i"],
}


async def test_each_language_has_its_traps(desk: Desk) -> None:
    """Each suspicious line is named, and none of the like that is fine."""
    for folder, lines in (("bad", SUSPECT), ("good", CLEAN)):
        for name, suspects in lines.items():
            desk.write(f"{folder}/{name}", "\n".join(suspects) + "\n")
        desk.write(f"{folder}/z.c", "int a;\n")
        await desk.run(f"cd {folder} && git init -qb main && {GIT} commit -qm a --allow-empty && git checkout -qb x")
        await desk.run(f"cd {folder} && git add . && {GIT} commit -qm b")
    text = await desk.run(f"{S}/scan.py bad --base main")
    named = {line.split(": ")[0] for line in text.splitlines()}
    expected = {f"{name}:{number}" for name, lines in SUSPECT.items() for number in range(1, len(lines) + 1)}
    assert expected <= named, sorted(expected - named)
    assert "z.c: looked for secrets and the like only" in text
    text = await desk.run(f"{S}/scan.py good --base main")
    assert "0 suspicions in 9 files" in text, text
