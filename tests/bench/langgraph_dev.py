"""`langgraph dev` with LangChain's agent, where it is installed in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.bench import processes
from tests.bench.processes import Sika

_AGENTS = """from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

def _agent(model):
    return create_agent(ChatOpenAI(model=model, base_url={url!r}, api_key="none", stream_usage=True), tools=[])
"""


def command_of(environment: Path | None) -> Path | None:
    """Returns the command in an environment, or else on the path; None if it is not installed."""
    if environment is not None:
        return environment / "bin" / "langgraph" if (environment / "bin" / "langgraph").exists() else None
    found = shutil.which("langgraph")
    return Path(found) if found else None


@contextmanager
def serving(command: Path, folder: Path, url: str, models: Mapping[str, str], jobs: int) -> Iterator[Sika]:
    """A server as soon as it answers, with an agent for each of the models, by name. `jobs`: runs at a time."""
    agents = [f"{name} = _agent({model!r})\n" for name, model in models.items()]
    (folder / "agent.py").write_text(_AGENTS.format(url=url) + "".join(agents))
    graphs = {name: f"./agent.py:{name}" for name in models}
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}))
    words = ["dev", "--no-browser", "--no-reload", "--n-jobs-per-worker", str(jobs)]
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    with processes.foreign([str(command), *words], folder, "/ok", PATH=path) as server:
        yield server
