"""Reading the configuration: which file, which variables, which mistakes. The sections are in `core.config.settings`.

Every error is `Invalid` and names the file and the key; what is only suspicious goes to `Config.warnings`.
"""

from __future__ import annotations

import copy
import difflib
import functools
import hashlib
import json
import operator
import os
import re
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import dotenv
import msgspec
import structlog
import yaml

from core.config import deerflow, extensions
from core.config.channels import AccountSettings, ChannelSettings
from core.config.redaction import is_secret, redactor
from core.config.settings import Config, Model, Secret, Section, ToolEntry
from core.config.weak import weak_secrets
from core.errors import Invalid

log = structlog.get_logger("sika.config")

__all__ = ["Config", "ConfigSource", "Secret", "find", "home", "load", "parse", "restart_required", "reveal"]

LOOK_SECONDS = 0.5
"""Interval at which a server looks for changed files."""
DERIVED = {"extra", "hash", "warnings"}
"""Fields that are filled here; as keys in a file they are unknown."""
_ARGUMENTS_FOR_OTHERS = (Model, ToolEntry, ChannelSettings, AccountSettings)
"""No spelling advice: their unknown keys belong to the class or platform that they name."""
_EMPTY_IF_MISSING = re.compile(r"^(sandbox\.environment|acp_agents\.[^.]+\.env)\.")
NEEDS_RESTART = (
    "log_level", "http.host", "http.port", "auth.enabled", "nats", "runs.max_concurrent", "actors", "installed",
    "sandbox", "skills.path", "metrics.enabled", "tracing.otlp",
)  # fmt: skip
"""Keys and sections whose changes take effect at the next start."""
_from_dotenv: dict[str, str] = {}
"""The variables of this process that come from `.env`."""
_Stamp = tuple[int, int, int] | None


def home(argument: str | Path | None = None) -> Path:
    """The data directory: argument, `SIKA_HOME`, `DEER_FLOW_HOME`, `.sika`; absolute, perhaps not there yet."""
    chosen = argument or os.environ.get("SIKA_HOME") or os.environ.get("DEER_FLOW_HOME") or _project() / ".sika"
    return Path(chosen).expanduser().absolute()


def find(argument: str | Path | None = None) -> Path | None:
    """The configuration file: argument, `SIKA_CONFIG`, `DEER_FLOW_CONFIG_PATH`, `./config.yaml` if it is there; in
    DeerFlow's folder `backend`, else the one in the folder above, as there.
    """
    named = argument or os.environ.get("SIKA_CONFIG") or os.environ.get("DEER_FLOW_CONFIG_PATH")
    path = Path(named or _project() / "config.yaml").expanduser().absolute()
    if path.exists():
        return path
    if named:
        raise Invalid(f"{path}: no such configuration file")
    above = path.parent.parent / path.name
    return above if path.parent.name == "backend" and above.exists() else None


def _project() -> Path:
    """Where things lie whose place nobody names: `DEER_FLOW_PROJECT_ROOT`, or the working directory."""
    return Path(os.environ.get("DEER_FLOW_PROJECT_ROOT") or ".")


def load(argument: str | Path | None = None) -> Config:
    """Read `.env` (which overrides nothing), then the configuration; without a file all is default."""
    return ConfigSource(argument).current()


class Additions(typing.NamedTuple):
    """What people add beside the file: entries of `models`, and lists of models by role. What the file has wins.
    `version` names the content.
    """

    models: Sequence[Mapping[str, Any]] = ()
    roles: Mapping[str, Sequence[str]] = {}
    version: str = ""

    def to(self, raw: dict[str, Any]) -> None:
        """Brings the additions into a raw configuration."""
        if not isinstance(own := raw.get("models") or [], list) or not isinstance(raw.get("model_roles") or {}, dict):
            return
        names = [entry.get("name") for entry in own if isinstance(entry, dict)]
        raw["models"] = [*own, *(dict(entry) for entry in self.models if entry["name"] not in names)]
        known = {*names, *(entry["name"] for entry in self.models)}
        roles = {role: [name for name in models if name in known] for role, models in self.roles.items()}
        chosen = {role: models for role, models in roles.items() if models}
        raw["model_roles"] = {**chosen, **(raw.get("model_roles") or {})}


NOTHING = Additions()


def parse(
    text: str,
    name: str = "config.yaml",
    environ: Mapping[str, str] | None = None,
    extended: str = "",
    added: Additions = NOTHING,
) -> Config:
    """Make a `Config` of YAML text. Raises `Invalid` with `name` and the place of the first mistake.

    `extended` is the text of DeerFlow's second file (`core.config.extensions`), `added` what people add beside both.
    """
    lines, renamed = _Lines(text), dict[str, str]()
    environ = os.environ if environ is None else environ
    more = extensions.read(extended, extensions.NAMES[0], environ)
    try:
        raw, repeated = _read_yaml(text)
        resolved = extensions.merged(_resolve(raw, "", environ), more)
        written = copy.deepcopy(resolved)
        renamed = deerflow.modernise(resolved)
        outdated = resolved != written
        renamed |= deerflow.complete(resolved, environ)
        if added.version:
            added.to(resolved)
        notes = [f"{path}: {remark}" for path, remark in deerflow.without_effect(resolved)]
        notes = [*deerflow.remark_on_version(resolved, outdated or bool(notes)), *notes, *extensions.unknown(more)]
        unknown: list[str] = []
        shaped = _shape(Config, resolved, "", unknown)
        notes += [lines.placed(_as_written(note, renamed)) for note in unknown] + list(map(lines.placed, repeated))
        shaped |= {"hash": _digest(json.dumps(raw, sort_keys=True, default=str) + extended + added.version)}
        shaped |= {"warnings": notes}
        config = msgspec.convert(shaped, Config, strict=False, dec_hook=_to_secret)
        return msgspec.structs.replace(config, warnings=(*config.warnings, *_disabled(config), *weak_secrets(config)))
    except msgspec.ValidationError as error:
        problem = _as_written(lines.misspelt(_problem(error, Config, shaped)), renamed)
        raise Invalid(f"{name}: {lines.placed(problem)}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise Invalid(f"{name}{place}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Invalid(f"{name}: {error}") from None
    except RecursionError:
        raise Invalid(f"{name}: something contains itself (&, *), or is nested too deeply") from None
    except Invalid as error:
        raise Invalid(f"{name}: {lines.placed(str(error))}") from None


def _as_written(problem: str, renamed: Mapping[str, str]) -> str:
    """Returns a problem whose key is called as in the file."""
    for new, old in renamed.items():
        problem = re.sub(rf"^{re.escape(new)}\b", old, problem)
    return problem


class Written(typing.NamedTuple):
    """Where a key stands: a line of the file, and the variable that its value names, if it does."""

    line: int
    variable: str = ""


def _written(text: str, environ: Mapping[str, str]) -> dict[str, Written]:
    renamed = deerflow.modernise(_resolve(_read_yaml(text)[0], "", environ))
    olds = {old: new for new, old in renamed.items()}
    keys: dict[str, Written] = {}
    for path, line, value in _key_nodes(yaml.compose(text, yaml.SafeLoader), ""):
        scalar = value.value if isinstance(value, yaml.ScalarNode) else ""
        variable = scalar[1:].strip("{}") if scalar.startswith("$") and not scalar.startswith("$$") else ""
        keys[_renamed(path, olds)] = Written(line, variable)
    return keys


def _renamed(path: str, olds: Mapping[str, str]) -> str:
    for old in sorted(olds, key=len, reverse=True):
        if path == old or path.startswith((f"{old}.", f"{old}[")):
            return olds[old] + path[len(old) :]
    return path


class _Lines:
    """The lines of the keys of a text, looked up only where there is something to say."""

    def __init__(self, text: str) -> None:
        self._text = text

    @functools.cached_property
    def _of(self) -> dict[str, int]:
        return {path: line for path, line, _ in _key_nodes(yaml.compose(self._text, yaml.SafeLoader), "")}

    def placed(self, problem: str) -> str:
        """Adds the line of the key that a problem begins with."""
        line = self._of.get(problem.partition(": ")[0])
        return f"{problem} (line {line})" if line else problem

    def misspelt(self, problem: str) -> str:
        """Names the most similar key, where one is missing."""
        place, _, text = problem.partition(": ")
        missing = text.removeprefix("missing required field ")
        inside = {path.removeprefix(f"{place}."): path for path in self._of if path.startswith(f"{place}.")}
        close = difflib.get_close_matches(missing, inside, n=1, cutoff=0.7) if missing != text else []
        return f"{inside[close[0]]}: unknown key, did you mean {missing}? It is missing" if close else problem


def _key_nodes(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yields the path, the line and the value of each key."""
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                place = f"{path}.{key.value}" if path else str(key.value)
                yield place, key.start_mark.line + 1, value
                yield from _key_nodes(value, place)
        case yaml.SequenceNode():
            for index, value in enumerate(node.value):
                place = f"{path}[{index}]"
                yield place, value.start_mark.line + 1, value
                yield from _key_nodes(value, place)


def reveal(value: Any) -> Any:
    """A copy of open settings with every `Secret` replaced by its text; for the moment of use."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Mapping):
        return {key: reveal(item) for key, item in value.items()}
    return [reveal(item) for item in value] if isinstance(value, list | tuple) else value


def restart_required(old: Config, new: Config) -> list[str]:
    """The changed keys that take effect only at the next start."""
    return [key for key in NEEDS_RESTART if operator.attrgetter(key)(old) != operator.attrgetter(key)(new)]


class ConfigSource:
    """The configuration as `config.yaml` and `.env` are now, inside `watched` as they were a moment ago. Files that
    break later change nothing but `problem`.

    Raises `Invalid` if they are broken at the start: then there is nothing to fall back to. `added`: see `extend`.
    """

    def __init__(self, argument: str | Path | None = None, added: Additions | None = None) -> None:
        self._argument = argument
        self._path: Path | None = None
        self._stamps: tuple[_Stamp, _Stamp, _Stamp] | None = None
        self._texts: tuple[str, Mapping[str, str | None], str] | None = None
        self._problem: str | None = None
        self._text = ""
        """Of the file in force."""
        self._added = NOTHING
        self._looking = threading.Lock()
        self._check: Callable[[Config], object] = lambda _: None
        self._config = parse("")
        self._watched = False
        self._refresh()
        if added is not None:
            self.extend(added)

    @property
    def problem(self) -> str | None:
        """Why the files as they are now are not in force; None if they are. Costs what `current` costs.

        A text for people, without secrets: it names the file and the key.
        """
        self.current()
        return self._problem

    @property
    def project(self) -> Path:
        """The folder of the configuration file; without a file, of what nobody names."""
        return self._path.parent if self._path else _project()

    @property
    def places(self) -> Sequence[Path]:
        """The directories in which files of the configuration are looked for."""
        return tuple({self.project.absolute(), _project().absolute()})

    @property
    def files(self) -> Sequence[Path]:
        """The files of the configuration, which need not be there."""
        second = extensions.find(self.project, os.environ)
        return [path for path in (self._path, _project() / ".env", second) if path is not None]

    def written(self) -> Mapping[str, Written]:
        """Returns the keys that the file in force has, by what they are called today."""
        return _written(self._text, os.environ)

    def extend(self, added: Additions) -> None:
        """Brings what people added into the configuration; if it does not fit the files any more, it is left out."""
        self._added, self._texts, self._stamps = added, None, None
        self._look()

    def tried(self, added: Additions) -> Config:
        """Returns the configuration as it would be with other additions. Raises `Invalid`."""
        _, _, extended = self._texts or ("", {}, "")
        config = parse(self._text, "config.yaml", extended=extended, added=added)
        self._check(config)
        return config

    def require(self, check: Callable[[Config], object]) -> None:
        """From now on, a changed configuration counts only if `check` does not raise `Invalid`."""
        self._check = check

    def current(self) -> Config:
        """The last good configuration. Costs nothing inside `watched`; elsewhere two `stat`, and a look at files that
        changed.
        """
        if not self._watched:
            self._look()
        return self._config

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """For as long as the block lasts, changes are looked for and checked in a thread: a check imports modules."""
        async with anyio.create_task_group() as tasks:
            self._watched = True
            tasks.start_soon(self._watch)
            try:
                yield
            finally:
                self._watched = False
                tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await anyio.to_thread.run_sync(self._look, abandon_on_cancel=True)

    def _look(self) -> None:
        with self._looking:
            self._look_once()

    def _look_once(self) -> None:
        before, problem = self._config, self._problem
        try:
            self._refresh()
        except Invalid as error:
            self._problem = str(error)
        except Exception as error:  # of what the configuration names
            self._problem = redactor.text(f"it could not be checked: {type(error).__name__}: {error}")
        if self._problem and self._problem != problem:
            log.error("configuration is broken, the last good one stays in force", problem=self._problem)
        if self._config is not before:
            log.info("configuration read again", hash=self._config.hash, warnings=list(self._config.warnings))
            if later := restart_required(before, self._config):
                log.warning("these keys take effect at the next start", keys=later)

    def _refresh(self) -> None:
        self._path = path = self._path or find(self._argument)
        second = extensions.find(path.parent if path else _project(), os.environ)
        stamps = _stamp(path), _stamp(_project() / ".env"), _stamp(second)
        if stamps == self._stamps:
            return
        self._stamps = None  # what cannot be read is tried again
        variables = _read_dotenv()
        text, extended = _read(path) if path else "", _read(second) if second else ""
        self._stamps = stamps
        if (text, variables, extended) != self._texts or self._problem:
            self._texts = text, variables, extended
            redactor.learn_environment()
            changed = self._checked(text, path, extended)
            self._config, self._problem, self._text = changed, None, text

    def _checked(self, text: str, path: Path | None, extended: str) -> Config:
        """Returns the configuration of the files, with what people added if it fits. Raises `Invalid`."""
        for added in (self._added, NOTHING):
            try:
                changed = parse(text, path.name if path else "config.yaml", extended=extended, added=added)
                redactor.learn(changed, owner=f"{path}{id(self) if path is None else ''}")
                self._check(changed)
            except Invalid as error:
                if not added.version:
                    raise
                log.warning("what was added beside the file is left out", problem=str(error))
            else:
                return changed
        raise AssertionError("unreachable")


def _stamp(path: Path | None) -> _Stamp:
    """Changes when the file does; None if there is none."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return stat and (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path.name}: {getattr(error, 'strerror', None) or error}") from None


def _read_dotenv() -> Mapping[str, str | None]:
    """Brings `.env` into the environment, where it overrides nothing but what it brought itself before."""
    try:
        variables = dotenv.dotenv_values(_project() / ".env", interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f".env: {getattr(error, 'strerror', None) or error}") from None
    for name in [name for name in _from_dotenv if variables.get(name) is None]:
        if os.environ.get(name) == _from_dotenv.pop(name):
            del os.environ[name]
    for name, value in variables.items():
        if value is not None and os.environ.get(name) in (None, _from_dotenv.get(name)):
            os.environ[name] = _from_dotenv[name] = value
    return variables


def _read_yaml(text: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the content, and a note about each key that stands there again, as YAML keeps the last one only."""
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    repeated = list(_repeated(node))
    raw = None if node is None else loader.construct_document(node)
    if raw is not None and not isinstance(raw, dict):
        raise Invalid("expected sections (key: value) at the top level")
    return typing.cast(dict[str, Any], _text_keys(raw or {})), repeated


def _repeated(node: yaml.Node | None, path: str = "") -> Iterator[str]:
    match node:
        case yaml.MappingNode():
            lines: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                place = f"{path}.{name}" if path else name
                if name in lines:
                    yield f"{place}: stands in line {lines[name]} already; only the last one counts"
                elif name != "<<":
                    lines[name] = line
                yield from _repeated(value, place)
        case yaml.SequenceNode():
            for index, value in enumerate(node.value):
                yield from _repeated(value, f"{path}[{index}]")


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value


def _resolve(value: Any, path: str, environ: Mapping[str, str]) -> Any:
    """Replace `$NAME` by the variable of that name; `$$` at the start is a plain dollar."""
    if isinstance(value, dict):
        return {key: _resolve(item, f"{path}.{key}" if path else key, environ) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, f"{path}[{index}]", environ) for index, item in enumerate(value)]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value.startswith("$$"):
        return value[1:]
    name = value[1:].removeprefix("{").removesuffix("}")
    if name in environ:
        return environ[name]
    if _EMPTY_IF_MISSING.match(path):
        return ""
    raise Invalid(f"{path}: the environment variable {name} is not set")


def _shape(kind: Any, value: Any, path: str, warnings: list[str]) -> Any:
    """Bring `value` into the form of `kind`: unknown keys to `extra`, empty sections away, secrets covered."""
    if _optional(kind):
        kind = next(arm for arm in typing.get_args(kind) if arm is not type(None))
    if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
        return _shape_section(kind, value, path, warnings)
    arguments = typing.get_args(kind)
    if isinstance(value, list) and typing.get_origin(kind) is tuple:
        return [_shape(arguments[0], item, f"{path}[{index}]", warnings) for index, item in enumerate(value)]
    if isinstance(value, dict) and arguments and Any not in arguments:
        return {key: _shape(arguments[-1], item, f"{path}.{key}", warnings) for key, item in value.items()}
    return _cover(value) if isinstance(value, dict) else value


def _shape_section(kind: type[Section], value: dict[str, Any], path: str, warnings: list[str]) -> dict[str, Any]:
    fields = _fields(kind)
    shaped: dict[str, Any] = {"extra": {}}
    for key, item in value.items():
        place = f"{path}.{key}" if path else key
        if key not in fields:
            shaped["extra"][key] = _cover(item, hidden=is_secret(key))
            warnings.extend(_advice(kind, key, place))
        elif item is not None or _optional(fields[key]):
            shaped[key] = _shape(fields[key], item, place, warnings)
    return shaped


@functools.cache
def _fields(kind: type[Section]) -> dict[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in DERIVED}


def _optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _advice(kind: type[Section], key: str, place: str) -> list[str]:
    if kind in _ARGUMENTS_FOR_OTHERS or deerflow.known(place):
        return []
    if remark := deerflow.remark_of(place):
        return [f"{place}: {remark}"]
    close = difflib.get_close_matches(key, _fields(kind), n=1, cutoff=0.7)
    return [f"{place}: unknown key" + (f", did you mean {close[0]}?" if close else "")]


def _cover(value: Any, hidden: bool = False) -> Any:
    """Make a `Secret` of every string that stands under a telling name."""
    if isinstance(value, dict):
        return {key: _cover(item, hidden or is_secret(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_cover(item, hidden) for item in value]
    return Secret(value) if hidden and isinstance(value, str) else value


def _to_secret(kind: type[Any], value: Any) -> Any:
    if kind is Secret and isinstance(value, str | int | float) and not isinstance(value, bool):
        return Secret(str(value))
    raise ValueError(f"Expected `str`, got `{type(value).__name__}`")


def _place_first(message: str) -> str:
    """`Expected `int`, got `str` - at `$.runs.x`` becomes `runs.x: expected int, got str`."""
    text, _, place = message.replace("`", "").replace("Object missing", "missing").partition(" - at $")
    return f"{place.lstrip('.')}: {text[:1].lower()}{text[1:]}" if place else text


def _disabled(config: Config) -> Iterator[str]:
    """Yields a warning for each account of a chat platform that has credentials and is not enabled."""
    for name, settings in config.channels.accounts():
        if not settings.enabled and any(value and is_secret(key) for key, value in settings.extra.items()):
            yield f"channels: the account {name} has credentials, but not `enabled: true`"


def _problem(error: msgspec.ValidationError, kind: Any, shaped: Any) -> str:
    """Returns the place of a mistake and its text. Entries of mappings, which the library leaves out, are named."""
    problem = _place_first(str(error))
    above, unnamed, _ = problem.partition("[...]")
    if not unnamed or "[" in above or ": " in above:
        return problem
    for key in above.split("."):
        kind, shaped = _fields(kind)[key], shaped[key]
    inner = typing.get_args(kind)[-1]
    for key, item in shaped.items():
        try:
            msgspec.convert(item, inner, strict=False, dec_hook=_to_secret)
        except msgspec.ValidationError as inside:
            text = _problem(inside, inner, item)
            dot = "." if " - at " in str(inside) else ": "
            return f"{above}.{key}{dot}{text[:1].lower()}{text[1:]}"
    return problem


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
