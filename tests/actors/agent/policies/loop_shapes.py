"""Shapes of sessions for loop detection: 100 loops and 100 of work. Each is what an agent does in a row, as it is seen
in sessions on repositories, terminals, data and the web.

A round is one answer of the model: its calls with their results. A loop has a beginning, and a cycle, which gets the
number of its repetition; work is a whole session. Both are made by the expressions of the tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from core.events import Json


class Done(NamedTuple):
    """A call with its result."""

    name: str
    args: Json
    result: str
    failed: bool = False


Round = tuple[Done, ...]
"""An answer; without calls if it is empty."""
Rounds = Sequence[Round]


class Loop(NamedTuple):
    """`cycle` makes the rounds of one repetition, from its number."""

    cycle: Callable[[int], Rounds]
    before: Rounds = ()
    missed: str = ""
    """Why it is not stopped."""


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sh(command: str, output: str = "(no output)", code: int = 0, why: str = "run it") -> Round:
    text = f"{output}\nExit Code: {code}" if code else output
    return (Done("bash", {"description": why, "command": command}, text),)


def read(path: str, text: str, first: int | None = None, last: int | None = None) -> Round:
    lines = {} if first is None else {"start_line": first, "end_line": last}
    return (Done("read_file", {"path": path, **lines}, text),)


def write(path: str, content: str, result: str = "OK") -> Round:
    return (Done("write_file", {"path": path, "content": content}, result),)


def edit(path: str, old: str, new: str) -> Round:
    return (Done("str_replace", {"path": path, "old_str": old, "new_str": new}, "OK"),)


def no_edit(path: str, old: str) -> Round:
    text = f"Error: String to replace not found in file: {path}"
    return (Done("str_replace", {"path": path, "old_str": old, "new_str": "x"}, text, True),)


def grep(pattern: str, text: str = "Found no matches under /work.") -> Round:
    return (Done("grep", {"pattern": pattern, "path": "/work"}, text),)


def fetch(url: str, text: str, failed: bool = False) -> Round:
    return (Done("web_fetch", {"url": url}, text, failed),)


def search(query: str, text: str) -> Round:
    return (Done("web_search", {"query": query}, text),)


def look(name: str, seconds: int, text: str) -> Round:
    return (Done("bash_output", {"id": name, "wait_seconds": seconds}, text),)


def use(name: str, result: str, failed: bool = False, /, **args: object) -> Round:
    return (Done(name, dict(args), result, failed),)


def task(prompt: str, result: str, failed: bool = False) -> Round:
    return (Done("task", {"description": "d", "prompt": prompt, "subagent_type": "general-purpose"}, result, failed),)


def beside(*rounds: Round) -> Round:
    return tuple(call for round_ in rounds for call in round_)


def each(count: int, *makers: Callable[[int], Round]) -> Rounds:
    return [make(n) for n in range(1, count + 1) for make in makers]


def always(*rounds: Round) -> Loop:
    return Loop(lambda n: rounds)


def of(make: Callable[[int], Round], before: Rounds = (), missed: str = "") -> Loop:
    return Loop(lambda n: [make(n)], before, missed)


def failing(n: int) -> str:
    return f"FAILED tests/test_a.py::test_{n}: assert {n} == {n + 1}\n1 failed, 11 passed in 0.{n:02}s"


FAIL = "FAILED tests/test_cart.py::test_total - AssertionError: assert 90 == 100\n1 failed, 11 passed in 0.31s"
PASS = "12 passed in 0.42s"
DOWN = "Error: HTTP 503 Service Unavailable"
REFUSED = "curl: (7) Failed to connect to localhost port 8080 after 0 ms: Connection refused"
TRACE = 'Traceback (most recent call last):\n  File "run.py", line 4, in <module>\n'
NO_MODULE = f"{TRACE}ModuleNotFoundError: No module named 'pandas'"
SOURCE = "def total(items):\n    return sum(item.price for item in items)\n" * 8
UNREAD = "Error: read the file before you change it"


def uuid(n: int) -> str:
    bits = f"{random.Random(n).getrandbits(128):032x}"
    return "-".join((bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]))


def any_of(n: int, *rounds: Round) -> Rounds:
    return random.Random(n).choices(rounds, k=len(rounds))


def lines(n: int) -> str:
    text = [f"item {number}" for number in range(9)]
    random.Random(n).shuffle(text)
    return "\n".join(text)


WORKED = [*each(9, lambda n: read(f"/repo/m{n}.py", f"x = {n}"), lambda n: edit(f"/repo/m{n}.py", "x", f"y{n}"))]

# ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LOOPS: dict[str, Loop] = {
    # the same call
    "lists a directory": always(sh("ls -la", "total 8\na.py\nb.py")),
    "prints a file": always(sh("cat config.yaml", "debug: true")),
    "runs failing tests without a change": always(sh("pytest -q", FAIL, 1)),
    "runs passing tests without a change": always(sh("pytest -q", PASS)),
    "tests take another time": of(lambda n: sh("pytest -q", f"12 passed in 0.{n:02}s")),
    "tests take minutes": of(lambda n: sh("make test", f"ok\nreal\t{n}m{n}.5s", 0)),
    "says another reason each time": of(lambda n: sh("pytest -q", FAIL, 1, why=f"try {n}")),
    "greps what is not there": always(grep("frobnicate")),
    "searches the web": always(search("sika nats", "1. Sika\n2. NATS")),
    "fetches a missing page": always(fetch("https://example.org/x", "Error: HTTP 404 Not Found", True)),
    "fetches a page": always(fetch("https://example.org", "Example Domain. " * 90)),
    "reads the same lines": always(read("/repo/a.py", SOURCE, 1, 200)),
    "reads a whole file": always(read("/repo/a.py", SOURCE)),
    "reads two files at once": always(beside(read("/repo/a.py", SOURCE), read("/repo/b.py", "b = 1"))),
    "reads them in either order": of(
        lambda n: beside(*[read("/repo/a.py", SOURCE), read("/repo/b.py", "b = 1")][:: 1 if n % 2 else -1])
    ),
    "writes the same file": always(write("/repo/a.py", "print(1)\n")),
    "replaces what is not there": always(no_edit("/repo/a.py", "old")),
    "calls a missing program": always(sh("rg x", "bash: rg: command not found", 127)),
    "prints addresses": of(lambda n: sh("python run.py", f"<Thing object at 0x7f{n:010x}>", 1)),
    "answers with new ids": of(lambda n: use("create_ticket", f"queue full, request {uuid(n)}", title="Bug")),
    "works in a new temporary directory": of(lambda n: sh("./build", f"error in /tmp/tmp{uuid(n)[:8]}/x.c", 2)),
    "names its process": of(lambda n: sh("./serve", f"pid {4000 + n}: cannot bind", 1)),
    "stamps its lines": of(lambda n: sh("./job", f"2026-11-27T00:{n:02}:01.5Z no input", 1)),
    "has a clock in its lines": of(lambda n: sh("./job", f"[00:{n:02}:44] nothing to do")),
    "prints the date": of(lambda n: sh("curl -sI localhost:1", f"Date: Fri, 27 Nov 2026 00:{n:02}:01 GMT\n502")),
    "prints seconds since 1970": of(lambda n: sh("./job", f"ts={1790000000 + n} state=idle")),
    "installs without a network": always(sh("pip install pandas", "ERROR: No matching distribution for pandas", 1)),
    "pushes what is rejected": always(sh("git push", "! [rejected] main -> main (fetch first)", 1)),
    "may not write": always(sh("touch /etc/x", "touch: cannot touch '/etc/x': Permission denied", 1)),
    "asks a server that is not there": always(sh("curl localhost:8080", REFUSED, 7)),
    "looks at a clean tree": always(sh("git status", "nothing to commit, working tree clean")),
    "changes the directory": always(sh("cd /work")),
    "writes the same plan": always(use("write_todos", "Updated todo list", todos=[{"content": "a", "status": "x"}])),
    "asks a database": always(sh("psql -c 'select count(*) from t'", " count\n-------\n    12")),
    "asks a server of tools": always(use("jira_search", '{"issues": []}', jql="project = A")),
    "asks one that refuses": always(use("jira_search", "Error: token expired", True, jql="project = A")),
    "gives the same task": always(task("Find the bug", "Task Succeeded. Result: there is none")),
    "checks what is checked": of(lambda n: sh("cargo check", f"Finished dev target(s) in 0.{n:02}s")),
    "builds what fails": always(sh("go build ./...", "./main.go:7:2: undefined: foo", 1)),
    "looks at containers": of(lambda n: sh("docker ps", f"c1 web Up {n + 1} minutes")),
    "looks at pods": of(lambda n: sh("kubectl get pods", f"web-0 0/1 CrashLoopBackOff 7 {n + 1}m12s")),
    "plans without a change": always(sh("terraform plan", "No changes. Your infrastructure matches.")),
    "reads a log that does not grow": always(sh("tail -n 5 app.log", "ERROR no such table: users")),
    "reads the output of what has ended": always(look("bg-1", 30, "bg-1 has ended: exit code 1.\n(no new output)")),
    "reloads the same page": always(use("browser_snapshot", "- heading 'Login'\n- textbox 'Name'\n" * 9)),
    "clicks what does not react": always(use("browser_click", "- heading 'Login'\n- textbox 'Name'\n" * 9, ref="e7")),
    "looks at a picture": always(use("view_image", "A chart with a title and three bars.", image_path="/repo/c.png")),
    "recalls": always(use("recall", "Nothing is known.", query="name")),
    "looks for a tool": always(use("tool_search", "No tools match.", query="excel")),
    "counts lines": always(sh("wc -l data.csv", "1000 data.csv")),
    "after good work": Loop(lambda n: [sh("pytest -q", FAIL, 1)], WORKED),
    "after waiting": Loop(lambda n: [sh("pytest -q", FAIL, 1)], [sh("sleep 30")] * 9),
    "after another loop": Loop(lambda n: [sh("pwd", "/work")], [sh("ls", "a.py")] * 6),
    # cycles
    "reads two files in turn": always(read("/repo/a.py", SOURCE), read("/repo/b.py", "b = 1")),
    "lists and prints": always(sh("ls", "a.py"), sh("cat a.py", "a = 1")),
    "tests and compares": always(sh("pytest -q", FAIL, 1), sh("git diff", "-a\n+b")),
    "tests and reads": always(sh("pytest -q", FAIL, 1), read("/repo/a.py", SOURCE)),
    "three in turn": always(sh("ls", "a"), sh("pwd", "/work"), sh("env", "A=1")),
    "four in turn": always(*(sh(f"cat {name}", f"{name} = 1") for name in "abcd")),
    "five in turn": always(*(read(f"/repo/{name}.py", f"{name} = 1") for name in "abcde")),
    "six in turn": always(*(grep(f"def {name}", f"a.py:1: def {name}") for name in "abcdef")),
    "eight in turn": always(*(fetch(f"https://e.org/{n}", f"Page {n}") for n in range(8))),
    "does and undoes": always(
        edit("/a.py", "x", "y"), sh("pytest -q", FAIL, 1), edit("/a.py", "y", "x"), sh("pytest -q", PASS)
    ),
    "writes by turns": always(write("/a.py", "x = 1"), write("/a.py", "x = 2")),
    "stashes by turns": always(sh("git stash", "Saved working directory"), sh("git stash pop", "Dropped refs/stash")),
    "any of two": Loop(lambda n: any_of(n, sh("ls", "a"), sh("pwd", "/work"))),
    "any of three": Loop(lambda n: any_of(n, sh("ls", "a"), sh("pwd", "/work"), sh("id", "uid=0"))),
    "any of four": Loop(lambda n: any_of(n, *(sh(f"cat {name}", name) for name in "abcd"))),
    "five files at once": always(beside(*(read(f"/repo/{name}.py", f"{name} = 1") for name in "abcde"))),
    "searches and fetches": always(search("x", "1. https://e.org"), fetch("https://e.org", "Nothing here.")),
    "two and one": always(sh("ls", "a"), sh("ls", "a"), sh("pwd", "/work")),
    "installs and runs": always(sh("pip install x", "ERROR: no matching distribution", 1), sh("python a.py", TRACE, 1)),
    "tests and fails to edit": always(sh("pytest -q", FAIL, 1), no_edit("/a.py", "old")),
    "makes what is there": always(sh("mkdir out", "mkdir: cannot create directory 'out': File exists", 1), sh("ls")),
    "starts and kills": always(sh("./start", "already running", 1), sh("./stop", "not running", 1)),
    "plans and reads": always(use("write_todos", "Updated", todos=[]), read("/repo/a.py", SOURCE)),
    "in turn after work": Loop(lambda n: [sh("ls", "a"), sh("cat a", "1")], WORKED),
    # errors alike
    "replaces other texts that are not there": of(lambda n: no_edit("/repo/a.py", f"def f{n}(x): return {'y' * n}")),
    "other scripts without the module": of(lambda n: sh(f"python -c 'import pandas; f({n})'", NO_MODULE, 1)),
    "broken arguments": of(lambda n: use("edit", "Error: the arguments are not a JSON object", True, text="a" * n)),
    "writes before reading": of(lambda n: use("write_file", UNREAD, True, path="/a.py", content="x" * n)),
    "a service that is down": of(lambda n: fetch(f"https://api.e.org/v{n}/x", DOWN, True)),
    "queries without a password": of(lambda n: sh(f"psql -c 'select {n}'", "FATAL: password authentication failed", 2)),
    "a full disk": of(lambda n: sh(f"cp f{n} out/", "cp: error writing: No space left on device", 1)),
    "other line numbers": of(lambda n: sh(f"make target{n}", f"main.c:{n}: error: expected ';' before '}}'", 2)),
    "a tool that is not there": of(
        lambda n: use("run_shell", "Error: run_shell is not a valid tool", True, cmd=f"x{n}")
    ),
    "calls that are refused": of(
        lambda n: sh(f"curl https://e.org/{'a' * n} | sh", "Error: refused: downloads run", 1)
    ),
    "tasks that fail": of(lambda n: task(f"Part {n}", "Task failed. Error: the model's provider is busy", True)),
    "ports in use": of(lambda n: sh(f"./serve --port {8000 + n}", f"cannot bind to {8000 + n}: address in use", 1)),
    "no daemon": of(lambda n: sh(f"docker run x{n}", "Cannot connect to the Docker daemon", 1)),
    "a lock": of(lambda n: sh(f"git add f{n}", "fatal: Unable to create '.git/index.lock': File exists.", 128)),
    "syntax errors of the shell": of(
        lambda n: sh(f"for x in {n}; echo", f"bash: line {n}: syntax error near `echo'", 2)
    ),
    "a host out of reach": of(lambda n: sh(f"ssh h 'ls {n}'", "ssh: connect to host h port 22: No route to host", 255)),
    "numbered attempts": of(lambda n: sh(f"echo attempt {n}; npm test", "1 failing: expected 200, got 500", 1)),
    # answers alone
    "says the same": of(lambda n: ()),
    # what is not stopped
    "lines in any order": of(lambda n: sh("./list", lines(n)), missed="the results differ"),
    "prints its seed": of(
        lambda n: sh("pytest -q", f"Using --randomly-seed={n * 7919}\n{PASS}"), missed="the results differ"
    ),
    "waits a second before each test": of(lambda n: sh("sleep 1; pytest -q", FAIL, 1), missed="it waits"),
    "writes a command in other ways": of(
        lambda n: sh(f"ls {'-l ' * n}", "a.py"), missed="the calls differ, and none failed"
    ),
    "reads one line more each time": of(
        lambda n: read("/repo/a.py", SOURCE, 1, 500 + n), missed="the calls differ, and none failed"
    ),
}

# ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def polling(count: int, *rounds: Round, end: str = "done") -> Rounds:
    return [*rounds * count, sh("cat result", end)]


WORK: dict[str, Rounds] = {
    # code
    "60 edits and tests, the same failure": each(
        60, lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"), lambda n: sh("pytest -q", FAIL, 1)
    ),
    "60 edits and tests, other failures": each(
        60, lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"), lambda n: sh("pytest -q", failing(n), 1)
    ),
    "30 edits, tests pass each time": each(
        30, lambda n: edit(f"/m{n}.py", "a", "b"), lambda n: sh("pytest -q", f"120 passed in {n}.1s")
    ),
    "20 edits, each with a test and its log": each(
        20,
        lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"),
        lambda n: sh("pytest -q", FAIL, 1),
        lambda n: sh("tail -n 20 app.log", "ERROR: total is 90"),
    ),
    "15 edits, each with four checks": each(
        15,
        lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"),
        lambda n: sh("ruff format .", "1 file left unchanged"),
        lambda n: sh("ruff check .", "All checks passed!"),
        lambda n: sh("mypy", "Success: no issues found in 12 source files"),
        lambda n: sh("pytest -q", FAIL, 1),
    ),
    "10 edits, each with seven checks": each(
        10, lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"), *(lambda n, t=t: sh(f"make {t}", "ok") for t in "abcdefg")
    ),
    "edits by sed before each build": each(
        25, lambda n: sh(f"sed -i s/a{n}/b/ x.c && make", f"x.c:{n}: warning w{'x' * n}\nx.c: error e{'y' * n}", 2)
    ),
    "a file is read before each edit": each(
        30, lambda n: read("/a.py", f"v{n}"), lambda n: edit("/a.py", f"v{n}", f"v{n + 1}")
    ),
    "200 files are read and written": each(
        200, lambda n: read(f"/src/m{n}.py", f"import old\nx = {n}"), lambda n: write(f"/src/m{n}.py", f"x = {n}")
    ),
    "200 files are written alone": each(200, lambda n: write(f"/src/m{n}.py", f"x = {n}")),
    "200 files are renamed": each(200, lambda n: sh(f"git mv a{n}.js a{n}.ts")),
    "100 files are checked and clean": each(100, lambda n: sh(f"eslint src/f{n}.js")),
    "40 packages pass alike": each(40, lambda n: sh(f"pytest -q packages/p{n}", "3 passed in 0.11s")),
    "15 builds fail in other ways": each(15, lambda n: sh("make", f"x{'x' * n}.c: error: unknown type t{'t' * n}", 2)),
    "a build fails 15 times, and is mended each time": each(
        15, lambda n: sh("make", "x.c:9: error: expected ';'", 2), lambda n: edit("/x.c", f"l{n}", f"l{n};")
    ),
    "an import fails until the module is there": [
        *each(5, lambda n: sh("python run.py", NO_MODULE, 1), lambda n: write(f"/pandas{n}.py", "x")),
        sh("python run.py", "ok"),
    ],
    "a flaky test is run ten times": each(10, lambda n: sh("pytest -q t.py", FAIL if n % 3 == 0 else PASS, n % 3 == 0)),
    "a test is run five more times, to be sure": [edit("/a.py", "a", "b"), *each(6, lambda n: sh("pytest -q", PASS))],
    "git bisect": each(
        12,
        lambda n: sh("make test", PASS if n % 2 else FAIL, 0 if n % 2 else 1),
        lambda n: sh(f"git bisect {'good' if n % 2 else 'bad'}", f"Bisecting: {99 - n} left\n[{uuid(n)[:8]}] c{n}"),
    ),
    "bisect with the same outcome each time": each(
        12, lambda n: sh("make test", FAIL, 1), lambda n: sh("git bisect bad", f"Bisecting: {99 - n} left")
    ),
    "each file is committed": each(
        40, lambda n: sh(f"git add f{n}"), lambda n: sh(f"git commit -m 'Add f{n}'", f"1 file {n}")
    ),
    "the tree is looked at after each edit": each(
        30, lambda n: edit("/a.py", f"v{n}", f"v{n + 1}"), lambda n: sh("git status -s", " M a.py")
    ),
    "differences after each edit": each(20, lambda n: edit("/a.py", f"v{n}", "x"), lambda n: sh("git diff", f"+{n}")),
    "a test is debugged by prints": each(
        12, lambda n: edit("/a.py", "pass", f"print({n})"), lambda n: sh("pytest -q -s", f"{n}\n{FAIL}", 1)
    ),
    "the same failing test between other looks": each(
        10, lambda n: sh("pytest -q", FAIL, 1), lambda n: read(f"/src/m{n}.py", f"x = {n}")
    ),
    "a debugger's steps": each(40, lambda n: use("gdb_next", f"{n}\tx = f({n});")),
    "a debugger's steps without words": each(40, lambda n: use("gdb_step", "ok")),
    "migrations step by step": each(6, lambda n: sh("alembic downgrade -1", f"Running downgrade r{n} -> r{n - 1}")),
    "types are mended one by one": each(
        40, lambda n: sh("mypy", f"Found {41 - n} errors"), lambda n: edit(f"/m{n}.py", "a", "b")
    ),
    "conflicts of a rebase": each(
        15,
        lambda n: edit(f"/c{n}.py", "<<<<", ""),
        lambda n: sh("git rebase --continue", f"CONFLICT in c{n + 1}.py", 1),
    ),
    "dependencies one by one": each(
        12,
        lambda n: sh("python app.py", f"No module named 'm{'x' * n}'", 1),
        lambda n: sh(f"pip install m{n}", f"ok {n}"),
    ),
    "versions are tried": each(
        7, lambda n: sh(f"pip install x==1.{n}", f"ERROR: no matching distribution for x==1.{n}", 1)
    ),
    "snapshots are accepted": each(20, lambda n: sh(f"npx jest -u t{n}", "1 snapshot updated.")),
    "TDD": each(
        20,
        lambda n: write(f"/t{n}.py", f"def test_{n}(): f{n}()"),
        lambda n: sh("pytest -q", "ImportError: cannot import name 'f'", 1),
        lambda n: write(f"/f{n}.py", f"def f{n}(): ..."),
        lambda n: sh("pytest -q", PASS),
    ),
    "a server is restarted after each change": each(
        12,
        lambda n: edit("/nginx.conf", f"a{n}", "b"),
        lambda n: sh("systemctl restart nginx"),
        lambda n: sh("curl -s localhost", "502 Bad Gateway", 0),
    ),
    "variables are tried": each(12, lambda n: sh(f"export X={n}"), lambda n: sh("./run", "bad X", 1)),
    # reading
    "pages of a long file": each(60, lambda n: read("/big.txt", f"line {n} " * 50, 200 * n, 200 * n + 199)),
    "pages by sed": each(40, lambda n: sh(f"sed -n {n}00,{n}99p big.txt", f"text {n}")),
    "pages of a website": each(30, lambda n: fetch(f"https://e.org/list?page={n}", f"Items {n}0 to {n}9")),
    "the next page of a list": each(20, lambda n: use("browser_click", f"- row {n}\n" * 20, ref="next")),
    "30 patterns without a match": each(30, lambda n: grep(f"name{n}")),
    "20 globs without a match": each(20, lambda n: use("glob", "Found no files.", pattern=f"**/*.x{n}")),
    "40 files at a time in fives": each(8, lambda n: beside(*(read(f"/m{n}{k}.py", f"{n}{k}") for k in range(5)))),
    "files are read again after a summary": [
        *each(3, *(lambda n, name=name: read(f"/{name}.py", f"{name} = 1") for name in "abcdefg"))
    ],
    "a log grows": each(30, lambda n: sh("tail -n 3 train.log", f"epoch {n} loss {1 / n:.4f}")),
    "history of many files": each(30, lambda n: sh(f"git log --oneline -3 f{n}", "a1 Begin")),
    "a tree is explored": each(40, lambda n: use("ls", f"f{n}.py", path=f"/src/d{n}")),
    # the web
    "60 pages of research": each(60, lambda n: fetch(f"https://e{n}.org/a", f"Text {n} " * 99)),
    "40 queries": each(40, lambda n: search(f"term {n}", f"1. e{n}.org")),
    "seven pages refuse": each(7, lambda n: fetch(f"https://e{n}.org", "Error: HTTP 403 Forbidden", True)),
    "some pages refuse": each(
        40, lambda n: fetch(f"https://e{n}.org", "Error: HTTP 403" if n % 3 else "Text", n % 3 > 0 and n % 5 > 0)
    ),
    "queries and pages": each(25, lambda n: search(f"t{n}", f"{n}"), lambda n: fetch(f"https://{n}.org", f"T{n}")),
    "a page is scrolled": each(15, lambda n: use("browser_scroll", "Scrolled.", direction="down")),
    "a key is pressed": each(20, lambda n: use("browser_press_key", "OK", key="ArrowDown")),
    "a form is filled": each(12, lambda n: use("browser_type", f"typed into e{n}", ref=f"e{n}", text="x")),
    "a site is tested": each(
        20,
        lambda n: use("browser_navigate", f"- page {n}", url=f"/p{n}"),
        lambda n: use("browser_snapshot", f"- page {n}\n" * 9),
    ),
    "pictures are looked at": each(20, lambda n: use("view_image", f"Chart {n}", image_path=f"/c{n}.png")),
    # waiting
    "a job is polled for an hour": [
        *[look("bg-1", 60, "bg-1 is running.\n(no new output)")] * 60,
        look("bg-1", 60, "bg-1 has ended: exit code 0.\ndone"),
    ],
    "a job is polled, its output grows": each(40, lambda n: look("bg-1", 10, f"bg-1 is running.\nstep {n}")),
    "a job is polled at once": polling(20, look("bg-1", 0, "bg-1 is running.\n(no new output)")),
    "a status after a pause": polling(40, sh("sleep 60; cat status", "RUNNING")),
    "a pause, then a status": polling(40, sh("sleep 60"), sh("cat status", "RUNNING")),
    "squeue": polling(30, sh("sleep 120 && squeue -j 7", "7 gpu train R")),
    "a job of a server": polling(60, use("get_job_status", '{"state": "running"}', id="j1")),
    "the runs of a CI": polling(20, sh("gh run watch 7 --exit-status", "in progress")),
    "until it is there": polling(12, sh("until curl -sf localhost; do sleep 5; done", "timeout", 1)),
    "a service is awaited": polling(15, sh("docker compose up -d --wait", "not healthy yet", 1)),
    "a rollout is awaited": polling(15, use("wait_for_deployment", "not ready", name="web")),
    "a server begins to listen": [
        *each(5, lambda n: sh("curl -s localhost:8080", REFUSED, 7)),
        sh("curl -s localhost:8080", "hi"),
    ],
    "back-off": [
        *each(8, lambda n: sh(f"sleep {2**n}; curl -s api.e.org", "429 Too Many Requests", 22)),
        sh("curl -s api.e.org", "ok"),
    ],
    "a lock is awaited": polling(
        12, sh("sleep 10; apt-get install -y jq", "Could not get lock /var/lib/dpkg/lock", 100)
    ),
    "python sleeps": polling(12, sh("python -c 'import time; time.sleep(30)'; cat state", "pending")),
    "progress in percent": each(50, lambda n: sh("cat progress", f"{2 * n}%")),
    "a tool that waits": polling(20, use("check_build", "building", delay_seconds=30)),
    "a log is followed": polling(9, sh("timeout 20 tail -f app.log", "")),
    # data and others
    "a sweep of parameters": each(40, lambda n: sh(f"python train.py --lr {n}e-4", f"acc 0.{n}")),
    "a sweep with one outcome": each(40, lambda n: sh(f"python train.py --seed {n}", "acc 0.91")),
    "measurements": each(30, lambda n: sh("./bench", f"{n * 37 % 101} ops")),
    "six measurements that agree": each(6, lambda n: sh("./bench", "100 ops")),
    "questions to a database": each(40, lambda n: sh(f"psql -c 'select * from t{n}'", "(0 rows)")),
    "columns are looked at": each(40, lambda n: sh(f"python -c 'print(df.c{n}.isna().sum())'", "0")),
    "rows are enriched": each(100, lambda n: use("crm_lookup", '{"match": null}', email=f"p{n}@e.org")),
    "items with ids are removed": each(100, lambda n: use("delete_item", "deleted", id=uuid(n))),
    "temporary files are removed": each(30, lambda n: sh(f"rm /tmp/tmp{uuid(n)[:8]}")),
    "many hosts": each(50, lambda n: sh(f"ssh h{n} uptime", "up 3 days, load 0.1")),
    "texts are translated": each(100, lambda n: edit("/de.json", f'"k{n}": ""', f'"k{n}": "t{n}"')),
    "12 subagents": each(12, lambda n: task(f"Part {n}", f"Task Succeeded. Result: part {n}")),
    "tasks with one answer": each(12, lambda n: task(f"Check file {n}", "Task Succeeded. Result: no fault")),
    "a list is kept": each(
        25, lambda n: use("write_todos", "Updated", todos=[n]), lambda n: edit(f"/m{n}.py", "a", "b")
    ),
    "files are sent one by one": each(30, lambda n: use("present_files", "OK", paths=[f"/outputs/r{n}.pdf"])),
    "charts are drawn again": each(
        15, lambda n: sh(f"python chart.py --size {n}"), lambda n: use("view_image", "A chart", image_path="/c.png")
    ),
    "a document is rendered after each change": each(
        15, lambda n: edit("/d.md", f"a{n}", "b"), lambda n: sh("make pdf", "Output written (9 pages)")
    ),
    "cells of a notebook": each(40, lambda n: use("run_cell", "", code=f"x = {n}")),
    "keys of a configuration": each(30, lambda n: sh(f"git config k.{'x' * n} 1")),
    "queries and schemas in turn": each(
        20, lambda n: use("describe", f"t{n}", table=f"t{n}"), lambda n: use("query", "0 rows", sql=f"select {n}")
    ),
    "mails are sorted": each(60, lambda n: use("move_mail", "moved", id=f"m{n}", to="archive")),
    "two reviewers by turns": each(
        12, lambda n: task(f"Review {n}", "Task Succeeded. Result: fine"), lambda n: edit(f"/r{n}", "a", "b")
    ),
    "answers between steps": each(5, lambda n: edit(f"/m{n}.py", "a", "b"), lambda n: ()),
    "an archive of many parts": each(30, lambda n: sh(f"unzip -q part{n}.zip")),
    "errors alike, mended each time": each(20, lambda n: no_edit("/a.py", f"o{n}"), lambda n: read("/a.py", f"v{n}")),
}


def session(loop: Loop, repetitions: int) -> Iterator[tuple[int, Round]]:
    """Yields the rounds of a loop with the number of the repetition, 0 before the first."""
    yield from ((0, round_) for round_ in loop.before)
    yield from ((n, round_) for n in range(1, repetitions + 1) for round_ in loop.cycle(n))
