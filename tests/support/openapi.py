"""Schemathesis over a running server: what it is given, how it is run, and a worker that ends every run it asks for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import STDOUT
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio

from core.events import Json, ModelCompleted
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
)
SEED = 2026
EXAMPLES = 2
"""Generated requests per operation, besides one for each rule of its schema."""
REQUEST_SECONDS = 30
"""What one answer may take; all streams that are called end."""

Known = Mapping[str, Sequence[str]]
"""Values of parameters that are there, by name."""


class Quick(RunActor):
    """Ends every run with one message."""

    name = "lead"

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        await run.append(ModelCompleted(message={"type": "ai", "id": f"ai-{run.id}", "content": "Done."}))


class Findings(NamedTuple):
    clean: bool
    report: str
    answered: Mapping[str, set[int]]
    """Statuses by operation."""


async def schemathesis(
    url: str,
    document: Json,
    folder: Path,
    *options: str,
    known: Known,
    special: Mapping[str, Known] = MappingProxyType({}),
    bodies: Mapping[str, Any] = MappingProxyType({}),
) -> Findings:
    """Run it as a process of its own. `special`: values for some operations only, by id; `bodies`: examples, by id."""
    document = _testable(document, known, special, bodies)
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text(_config(known, special, _missing(document), _twins(document)))
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run"]
    report = ["--url", url, "--report", "ndjson", "--report-ndjson-path", "events.ndjson"]
    result = await anyio.run_process(
        [*command, "openapi.json", *report, *options], cwd=folder, check=False, stderr=STDOUT
    )
    answered = _answered(folder / "events.ndjson", document)
    return Findings(result.returncode == 0, result.stdout.decode(errors="replace"), answered)


def can_succeed(operation: Json) -> bool:
    """Whether it has an answer that is no error: subsystems to come have none."""
    return any(status < "400" for status in operation["responses"])


def _testable(document: Json, known: Known, special: Mapping[str, Known], bodies: Mapping[str, Any]) -> Json:
    """The document without what never ends, and with real ids as examples: not everything shall be 404."""
    found: Json = json.loads(json.dumps(document))
    for path, methods in list(found["paths"].items()):
        for method, operation in list(methods.items()):
            if operation.get("x-endless"):
                del methods[method]
                continue
            parameters = [one for one in operation.get("parameters", ()) if not one.get("x-endless")]
            own = special.get(operation["operationId"], {})
            for one in parameters:
                values = {**known, **own} if one["in"] == "path" else own
                if one["name"] in values:
                    one["example"] = values[one["name"]][0]
            operation["parameters"] = parameters
            if operation["operationId"] in bodies:
                for content in operation["requestBody"]["content"].values():
                    content["example"] = bodies[operation["operationId"]]
        if not methods:
            del found["paths"][path]
    for schema in found["components"]["schemas"].values():
        schema.get("properties", {}).pop("after_seconds", None)  # a run of next year is not waited for
    return found


def _missing(document: Json) -> list[str]:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    return [one["operationId"] for one in operations if not can_succeed(one)]


def _twins(document: Json) -> list[str]:
    """Operations that take the body of an earlier one: the rules of its schema are gone through once."""
    seen: set[str] = set()
    found = []
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {})
            bodies = {one["schema"]["$ref"] for one in content.values() if "$ref" in one["schema"]}
            if bodies & seen:
                found.append(operation["operationId"])
            seen |= bodies
    return found


def _config(known: Known, special: Mapping[str, Known], missing: Sequence[str], twins: Sequence[str]) -> str:
    """Nothing is learned from answers, so that a run is like the one before, and what is needed is not deleted."""
    dictionaries = {"": known, **special}
    lines = [
        f"seed = {SEED}",
        "color = false",
        f"request-timeout = {REQUEST_SECONDS}",
        "max-redirects = 0",
        "continue-on-failure = true",
        "warnings = false",
        "[cache]",
        "enabled = false",
        "[generation]",
        f"max-examples = {EXAMPLES}",
        "database = 'none'",
        "no-shrink = true",
        "with-security-parameters = false",
        "[checks]",
        "enabled = false",
        *(f"{check}.enabled = true" for check in CHECKS),
        "negative_data_rejection.expected-statuses = ['4xx']",
        "[phases]",
        "stateful.enabled = false",
        "fuzzing.error-feedback.enabled = false",
        "coverage.unexpected-methods = ['trace']",  # one code says which methods every path has
        *(f"{phase}.extra-data-sources.responses = false" for phase in ("examples", "coverage", "fuzzing")),
        *(
            f"[dictionaries.{_dictionary(operation, name)}]\nvalues = {json.dumps(list(values))}"
            for operation, found in dictionaries.items()
            for name, values in found.items()
        ),
        "[parameters]",
        *_bindings("", known),
    ]
    for operation, found in special.items():
        lines += ["[[operations]]", f"include-operation-id = '{operation}'", "[operations.parameters]"]
        lines += _bindings(operation, found)
    if twins:
        lines += [
            "[[operations]]",
            f"include-operation-id = {json.dumps(list(twins))}",
            "phases.coverage.enabled = false",
        ]
    if missing:
        lines += [
            "[[operations]]",
            f"include-operation-id = {json.dumps(list(missing))}",
            "checks.not_a_server_error.expected-statuses = ['2xx', '4xx', 503]",
            "checks.negative_data_rejection.expected-statuses = ['4xx', 503]",
        ]
    return "\n".join(lines) + "\n"


def _bindings(operation: str, known: Known) -> list[str]:
    """Known ids are given most of the time."""
    return [f'"path.{name}" = {{ dictionary = "{_dictionary(operation, name)}", probability = 0.8 }}' for name in known]


def _dictionary(operation: str, name: str) -> str:
    return f"{operation}-{name}" if operation else name


def _answered(events: Path, document: Json) -> dict[str, set[int]]:
    """Statuses by operation, of all that are in the document."""
    found: dict[str, set[int]] = {
        f"{method.upper()} {path}": set() for path, methods in document["paths"].items() for method in methods
    }
    for line in events.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder") or {}
        for interaction in (recorder.get("interactions") or {}).values():
            if interaction.get("response") and recorder["label"] in found:
                found[recorder["label"]].add(interaction["response"]["status_code"])
    return found
