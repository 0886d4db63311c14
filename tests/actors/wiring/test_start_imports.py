"""A server imports what it needs to be ready; the rest when it is used first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

LATER = {
    "acp": "an agent of another program is called, in a process of its own",
    "authlib": "somebody signs in with an identity provider",
    "cryptography.x509": "a sandbox gets credentials",
    "langchain_mcp_adapters": "an MCP session is opened, in a process of its own",
    "langchain_openai": "a model is built",
    "langsmith.types": "never: `adapters.tracing.light`",
    "markdown_it": "somebody reads the documentation",
    "mcp": "an MCP session is opened, in a process of its own",
    "numpy": "never: commands of sandboxes have their own",
    "openai": "a model is built",
    "opentelemetry.sdk.metrics": "metrics are scraped",
    "opentelemetry.sdk.trace": "traces are exported",
    "prometheus_client": "metrics are scraped",
    "prompt_toolkit": "somebody chats in a terminal",
    "textual": "somebody looks into a log in a terminal",
}
"""Modules that a server has not imported when it is ready, and when they are."""


def test_a_server_that_is_ready_has_imported_only_what_it_needs(tmp_path: Path) -> None:
    program = """
        import gc, sys
        from pathlib import Path
        import anyio
        from actors.wiring import compose
        from actors.wiring.options import Options
        from core import collector

        async def main(home, later):
            options = Options(home=Path(home), port=0, own_process=True)
            with collector.paused():
                async with compose.serve(options):
                    assert not later & sys.modules.keys(), later & sys.modules.keys()
                    assert "langsmith.client" in sys.modules
                    assert gc.isenabled() and gc.get_freeze_count() > 100_000

        anyio.run(main, sys.argv[1], {*sys.argv[2:]})

        import adapters.tracing.pipeline, channels.http.server.exposition
        import langsmith.types
        assert {"opentelemetry.sdk.trace", "opentelemetry.sdk.metrics", "prometheus_client"} <= sys.modules.keys()
        assert langsmith.types.Run
    """
    words = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), *LATER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "SIKA_CONFIG": ""})
    assert done.returncode == 0, done.stderr[-2000:]
