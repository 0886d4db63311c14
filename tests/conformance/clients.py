"""Clients in processes of their own: many cases in one process, one result each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.conformance.releases import path_of
from tests.conformance.site import ROOT, Site

SECONDS = 280
Result = Mapping[str, Any]


def chosen(request: pytest.FixtureRequest, parameter: str, **others: str) -> list[str]:
    """The values of a parameter among the tests that were selected, where other parameters are as given."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = [params for params in calls if all(params.get(name) == value for name, value in others.items())]
    return list(dict.fromkeys(str(params[parameter]) for params in wanted if parameter in params))


def python(site: Site, release: str, cases: Iterable[str]) -> dict[str, Result]:
    """The results of cases, by name, done with a release of the SDK against all servers of the site."""
    urls = [argument for url in site.urls for argument in ("--url", url)]
    command = [sys.executable, "-m", "tests.conformance.python", *urls, "--models", site.models, *cases]
    return finished(command, {"PYTHONPATH": path_of(release)})


def finished(command: Sequence[str], environment: Mapping[str, str], cwd: str = str(ROOT)) -> dict[str, Result]:
    """The results that a process prints, a line of JSON for each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LANGGRAPH_", "LANGSMITH_"))}
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env={**clean, **environment}, cwd=cwd, check=False
        )
        out, err = made.stdout, made.stderr
    except subprocess.TimeoutExpired as slow:
        out, err = _text(slow.stdout), f"not done after {SECONDS} s\n{_text(slow.stderr)}"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    results: dict[str, Result] = {one["case"]: one for one in found}
    results[""] = {"outcome": "failed", "text": f"the client ended without a result:\n{err[-3000:]}"}
    return results


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""


def check(results: Mapping[str, Result], name: str) -> None:
    result = results.get(name, results[""])
    if result["outcome"] == "skipped":
        pytest.skip(result["text"])
    if result["outcome"] != "passed":
        pytest.fail(result["text"], pytrace=False)


class Once:
    """Results by key, worked out when they are first asked for; where that is skipped, it is skipped for all."""

    def __init__(self, work: Callable[[str], dict[str, Result]]) -> None:
        self._work = work
        self._found: dict[str, dict[str, Result]] = {}
        self._skipped: dict[str, str] = {}

    def __getitem__(self, key: str) -> dict[str, Result]:
        if key in self._skipped:
            pytest.skip(self._skipped[key])
        if key not in self._found:
            try:
                self._found[key] = self._work(key)
            except pytest.skip.Exception as reason:
                self._skipped[key] = str(reason)
                raise
        return self._found[key]
