"""LangSmith's client without OpenTelemetry's SDK, which it imports for a type: 0.1 s and 40 modules of every start.

Import it before LangChain, which imports the client.
"""

from __future__ import annotations

import sys

_SDK = "opentelemetry.sdk.trace"

if _SDK not in sys.modules:
    sys.modules[_SDK] = None  # type: ignore[assignment]  # its import fails now, for which the client is prepared
    try:
        import langsmith.client  # noqa: F401
    finally:
        del sys.modules[_SDK]
