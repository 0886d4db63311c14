"""A server that neither traces nor is scraped imports nothing for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_telemetry_is_imported_when_it_is_used() -> None:
    program = """
        import sys
        from actors.wiring.compose import problems
        from core.config.settings import Config

        assert problems(Config()) == []
        heavy = {"opentelemetry.sdk.trace", "opentelemetry.sdk.metrics", "prometheus_client"}
        assert not heavy & sys.modules.keys()
        assert "langsmith.client" in sys.modules

        import adapters.tracing.pipeline
        import channels.http.server.exposition

        assert heavy <= sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
