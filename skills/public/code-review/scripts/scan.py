"""Looks for known mistakes in the added lines of a change: python3 scan.py REPO [--base main] | --diff FILE.

Each hit is a suspicion to look at, not a finding. Python is read as a syntax tree, other languages line by line.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from changes import File, Problem, arguments, git, load

Hit = tuple[int, str, str]
"""A line, a weight (high, medium, low) and what is wrong there."""

SECRET = re.compile(
    r"""(?ix)(?:AKIA[0-9A-Z]{16} | ghp_\w{30,} | sk-[\w-]{20,} | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | (?:password|passwd|secret|api_?key|token)\s*[:=]\s*["'][^"'\s$\{<]{8,}["'])"""
)
LEAK = "a secret in the code: revoke it, it stays in the history"
ANY = (
    ("high", SECRET, LEAK),
    ("high", re.compile(r"^(<{7} |>{7} |={7}$)"), "a conflict marker"),
    (
        "high",
        re.compile(r"verify\s*=\s*False|rejectUnauthorized\s*:\s*false|InsecureSkipVerify\s*:\s*true"),
        "certificates are not checked",
    ),
    (
        "medium",
        re.compile(r"@pytest\.mark\.skip|\b(?:it|test|describe)\.(?:only|skip)\b|\bxit\("),
        "a test is skipped, or the only one that runs",
    ),
    (
        "medium",
        re.compile(r"#\s*(?:noqa|type:\s*ignore)\s*$|eslint-disable(?!-next-line)|@ts-nocheck"),
        "a check is switched off without saying which",
    ),
    ("low", re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"), "a new open end"),
)
QUOTED = r"(?:\"[^\"]*\"|'[^']*'|`[^`$]*`)"
SCRIPT = (
    (
        "high",
        re.compile(r"\.innerHTML\s*\+?=(?!=)|dangerouslySetInnerHTML|document\.write\("),
        "text becomes HTML: script injection",
    ),
    ("high", re.compile(r"\beval\(|new Function\(|\bset(?:Timeout|Interval)\(\s*[\"'`]"), "text becomes code"),
    ("high", re.compile(rf"(?:query|execute|raw)\(\s*(?:`[^`]*\$\{{|{QUOTED}\s*\+)"), "SQL from text: injection"),
    (
        "high",
        re.compile(
            rf"(?:child_process(?:[\"']\))?|\bcp|\bexeca|\bshelljs)\.(?:exec|execSync)\((?!\s*{QUOTED}\s*[,)])"
            rf"|(?<![.\w])exec(?:Sync)?\((?!\s*{QUOTED}\s*[,)])|\bshell\s*:\s*true"
        ),
        "a shell reads the command: injection; use execFile or spawn with a list",
    ),
    ("medium", re.compile(r"(?<![=!])==(?!=)|!=(?!=)"), "== converts types: use ==="),
    ("medium", re.compile(r"\.(?:forEach|map)\(\s*async\b(?!.*Promise\.all)"), "the promises are not awaited"),
    ("medium", re.compile(r"catch\s*(?:\([^)]*\))?\s*\{\s*\}"), "errors vanish"),
    ("low", re.compile(r"\bconsole\.log\(|\bdebugger\b"), "left from debugging"),
)
SHELL_WORD = r"(?:sh|bash|/bin/sh|/bin/bash|cmd|cmd\.exe|powershell)"
GO = (
    (
        "high",
        re.compile(rf'exec\.Command(?:Context)?\([^"`]*["`]{SHELL_WORD}["`]\s*,\s*["`](?:-\w*c|/[cC])["`]'),
        "a shell reads the command: injection; name the program and its arguments",
    ),
    (
        "high",
        re.compile(
            r'\.(?:Query|QueryRow|Exec|Raw)(?:Context)?\((?:\s*ctx\s*,)?\s*(?:fmt\.Sprintf\(|["`][^"`]*["`]\s*\+)'
        ),
        "SQL from text: injection; pass parameters",
    ),
    ("high", re.compile(r"template\.(?:HTML|JS|URL)\("), "text becomes HTML unescaped: script injection"),
    (
        "medium",
        re.compile(r"^\s*_\s*(?:,\s*_\s*)?=\s*\w[\w.]*\(|^\s*\w[\w, ]*,\s*_\s*:?=\s*\w[\w.]*\("),
        "a result is thrown away: is it the error?",
    ),
    ("medium", re.compile(r"\bhttp\.(?:Get|Post|Head|PostForm)\("), "no timeout: it may wait for ever"),
    ("medium", re.compile(r"\bpanic\("), "the whole program ends: return an error"),
    ("medium", re.compile(r'"math/rand"'), "predictable: not for keys and tokens (crypto/rand)"),
    ("low", re.compile(r"\bfmt\.Print(?:ln|f)?\("), "left from debugging"),
)
JAVA = (
    (
        "high",
        re.compile(rf"getRuntime\(\)\.exec\((?!\s*(?:{QUOTED}\s*\)|new String))"),
        "a command from text: injection; pass an array",
    ),
    ("high", re.compile(rf"(?:execute\w*|prepareStatement|createQuery)\(\s*{QUOTED}\s*\+"), "SQL from text: injection"),
    ("high", re.compile(r"new ObjectInputStream\("), "it creates any object that others send"),
    ("high", re.compile(r"catch\s*\([^)]*\)\s*\{\s*\}"), "errors vanish"),
    ("medium", re.compile(r"\.printStackTrace\(\)"), "an error is printed and forgotten"),
    ("low", re.compile(r"System\.out\.print"), "left from debugging"),
)
RUBY = (
    (
        "high",
        re.compile(r"(?:\bsystem|\bexec|%x|IO\.popen)\s*[({ ]?\s*[\"`][^\"`]*#\{|`[^`]*#\{"),
        "a shell reads the command",
    ),
    ("high", re.compile(r"\beval\b|\.send\(\s*params|Marshal\.load|YAML\.load\("), "text becomes code"),
    ("high", re.compile(r"\.(?:where|find_by_sql|execute|order)\(\s*\"[^\"]*#\{"), "SQL from text: injection"),
    ("medium", re.compile(r"rescue\s*(?:=>\s*\w+\s*)?;?\s*(?:nil\s*)?(?:end)?$"), "errors vanish"),
)
PHP = (
    (
        "high",
        re.compile(r"\b(?:system|exec|shell_exec|passthru|popen|proc_open)\([^)]*\$|`[^`]*\$"),
        "a shell reads the command: injection",
    ),
    ("high", re.compile(r"\beval\(|\bunserialize\(\s*\$"), "text becomes code"),
    ("high", re.compile(r"(?:query|prepare)\(\s*\"[^\"]*\$"), "SQL from text: injection"),
    ("high", re.compile(r"echo\s+\$_(?:GET|POST|REQUEST|COOKIE)"), "text becomes HTML: script injection"),
)
RUST = (
    ("medium", re.compile(r"\.(?:unwrap|expect)\("), "the program ends where this fails: return the error"),
    ("high", re.compile(r"\bunsafe\s*\{"), "the compiler checks nothing here: say why it is sound"),
    ("high", re.compile(rf'Command::new\(\s*"{SHELL_WORD}"\s*\)'), "a shell reads the command: injection"),
    ("low", re.compile(r"\bdbg!\(|\bprintln!\("), "left from debugging"),
)
SHELL = (
    ("high", re.compile(r"\beval\s+[\"$]|\b(?:ba)?sh\s+-c\s+\"[^\"]*\$"), "text becomes a command"),
    ("high", re.compile(r"\b(?:curl|wget)\b[^|#]*\|\s*(?:sudo\s+)?(?:ba|z)?sh\b"), "runs what a server sends, unseen"),
    (
        "high",
        re.compile(r"\brm\s+-\w*[rf]\w*\s+(?:[\"']?\$\w+[\"']?/|\$\w+\s*$)"),
        "an empty variable deletes the wrong folder",
    ),
    ("medium", re.compile(r"\bchmod\s+(?:-R\s+)?0?777\b"), "everybody may write there"),
)
SUFFIXES = {
    **dict.fromkeys((".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".vue", ".svelte"), SCRIPT),
    **dict.fromkeys((".java", ".kt", ".scala"), JAVA),
    **dict.fromkeys((".sh", ".bash", ".zsh"), SHELL),
    ".go": GO,
    ".rb": RUBY,
    ".php": PHP,
    ".rs": RUST,
}
OTHER = {".c", ".cc", ".cpp", ".h", ".hpp", ".cs", ".swift", ".m", ".pl", ".lua", ".ex", ".exs", ".dart", ".sql"}
READ = sorted({".py", *SUFFIXES})
"""Languages with patterns of their own. Of others only secrets and the like are looked for."""
_EXECUTE = {"execute", "executemany", "executescript", "raw"}
_NETWORK = {"get", "post", "put", "patch", "delete", "head", "request"}
_SHELL = {"call", "run", "Popen", "check_output", "check_call"}
_BY_SHELL = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput"} | {
    "asyncio.create_subprocess_shell",
    "pty.spawn",
}
_BY_SHELL_ALONE = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}


def lines_of(file: File) -> Iterator[Hit]:
    patterns = (*ANY, *SUFFIXES.get(Path(file.path).suffix, ()))
    for number, line in file.added.items():
        for weight, pattern, text in patterns:
            if pattern.search(line):
                yield number, weight, text


class Python(ast.NodeVisitor):
    """Collects suspicions of a module. The caller keeps those in added lines."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self._async = False

    def _hit(self, node: ast.AST, weight: str, text: str) -> None:
        self.hits.append((getattr(node, "lineno", 1), weight, text))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if isinstance(default, ast.List | ast.Dict | ast.Set):
                self._hit(default, "high", f"{node.name}: the default value is shared by all calls")
        before, self._async = self._async, isinstance(node, ast.AsyncFunctionDef)
        self.generic_visit(node)
        self._async = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        silent = all(isinstance(step, ast.Pass | ast.Continue) for step in node.body)
        if node.type is None:
            self._hit(node, "medium", "a bare except catches KeyboardInterrupt and SystemExit, too")
        if silent and (node.type is None or _name(node.type) in ("Exception", "BaseException")):
            self._hit(node, "high", "errors vanish: nobody will learn of them")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.Eq | ast.NotEq) and isinstance(right, ast.Constant) and right.value is None:
                self._hit(node, "low", "compare to None by `is`")
            if (
                isinstance(operator, ast.Is | ast.IsNot)
                and isinstance(right, ast.Constant)
                and isinstance(right.value, str | int)
                and not isinstance(right.value, bool)
            ):
                self._hit(node, "high", "`is` compares identity, not value")
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if isinstance(node.test, ast.Tuple) and node.test.elts:
            self._hit(node, "high", "an assert on a tuple is always true")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, full = _name(node.func), ast.unparse(node.func)
        words = {word.arg: word.value for word in node.keywords}
        if full in ("eval", "exec"):
            self._hit(node, "high", "text becomes code")
        if name in _EXECUTE and node.args and _built(node.args[0]):
            self._hit(node, "high", "SQL from text: injection; pass parameters")
        if _by_shell(name, full, node, words):
            self._hit(node, "high", "a shell reads the command: injection; pass a list")
        if full in ("yaml.load", "pickle.load", "pickle.loads", "marshal.loads") and "SafeLoader" not in ast.unparse(
            node
        ):
            self._hit(node, "high", f"{full} executes what it reads, if it comes from others")
        if full == "tempfile.mktemp":
            self._hit(node, "medium", "somebody else can take the name first: use NamedTemporaryFile")
        if full.startswith("requests.") and name in _NETWORK and "timeout" not in words:
            self._hit(node, "medium", "no timeout: it may wait for ever")
        if self._async and (full == "time.sleep" or full.startswith("requests.") or full.startswith("subprocess.")):
            self._hit(node, "high", f"{full} blocks the event loop")
        if full in ("datetime.utcnow", "datetime.datetime.utcnow") or (
            full.endswith("datetime.now") and not node.args and not words
        ):
            self._hit(node, "medium", "a time without a zone: use datetime.now(UTC)")
        if full == "open" and "encoding" not in words and not _binary(node, words):
            self._hit(node, "low", "no encoding: it depends on the machine")
        self.generic_visit(node)


def _by_shell(name: str, full: str, node: ast.Call, words: dict[str | None, ast.expr]) -> bool:
    """Tells whether a shell reads a command that is put together. A constant one is no injection."""
    shell = words.get("shell")
    if name in _SHELL and isinstance(shell, ast.Constant) and shell.value is True:
        return True
    always = full in _BY_SHELL or (name in _BY_SHELL_ALONE and not isinstance(node.func, ast.Attribute))
    words_of_shell = ast.unparse(node.args[0]) if node.args else ""
    listed = name in _SHELL and bool(re.match(rf"\[['\"]{SHELL_WORD}['\"], ['\"]-\w*c['\"], (?!['\"])", words_of_shell))
    return listed or (always and bool(node.args) and not isinstance(node.args[0], ast.Constant))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _built(node: ast.AST) -> bool:
    """True for text that is put together of pieces that are not constant."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return not all(isinstance(side, ast.Constant) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and _name(node.func) == "format"


def _binary(node: ast.Call, words: dict[str | None, ast.expr]) -> bool:
    mode = node.args[1] if len(node.args) > 1 else words.get("mode")
    return isinstance(mode, ast.Constant) and "b" in str(mode.value)


def scan(file: File, source: str | None) -> list[Hit]:
    hits = list(lines_of(file))
    if source is not None and file.path.endswith(".py"):
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            return [*hits, (error.lineno or 1, "high", f"does not parse: {error.msg}")]
        visitor = Python()
        visitor.visit(tree)
        hits += [hit for hit in visitor.hits if hit[0] in file.added]
    order = ("high", "medium", "low")
    return sorted(set(hits), key=lambda hit: (order.index(hit[1]), hit[0]))


def source_of(file: File, repo: Path | None, head: str, committed: bool) -> str | None:
    """Returns the file after the change. From a diff alone a new file is complete."""
    if repo is None:
        whole = list(file.added) == list(range(1, len(file.added) + 1)) and not file.removed
        return "\n".join(file.added.values()) if whole else None
    try:
        return git(repo, "show", f"{head}:{file.path}") if committed else (repo / file.path).read_text(encoding="utf-8")
    except (Problem, OSError, UnicodeDecodeError):
        return None


def main() -> int:
    options = arguments(__doc__).parse_args()
    try:
        files = [file for file in load(options) if not file.is_generated]
        from changes import span

        committed = (
            options.repo is not None and not options.diff and span(options.repo, options.base, options.head) != ["HEAD"]
        )
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    repo = None if options.diff else options.repo
    count = 0
    for file in files:
        source = source_of(file, repo, options.head, committed)
        for line, weight, text in scan(file, source):
            count += 1
            shown = "(not shown)" if text is LEAK else file.added.get(line, "").strip()[:110]
            print(f"{file.path}:{line}: {weight}: {text}\n    {shown}")
        if source is None and file.path.endswith(".py") and file.added:
            print(f"{file.path}: read line by line only (the whole file is not there)")
        if file.added and Path(file.path).suffix in OTHER:
            print(f"{file.path}: looked for secrets and the like only; there are patterns for {' '.join(READ)}")
    print(f"{count} suspicions in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
