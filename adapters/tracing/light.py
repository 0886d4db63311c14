"""LangSmith's client without what it imports for types: 0.15 s and 150 modules of every start.

OpenTelemetry's SDK is one of them, for whose absence the client is prepared. The other is the package of all types of
its API: the client needs one module of it, which loads without the package. Import this before LangChain, which
imports the client.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

_SDK, _TYPES = "opentelemetry.sdk.trace", "langsmith.types"


def _bare(package: str, name: str) -> ModuleType:
    """Returns a package below another one whose modules can be imported, and whose own code did not run."""
    above, module = find_spec(package), ModuleType(f"{package}.{name}")
    module.__path__ = [f"{place}/{name}" for place in (above and above.submodule_search_locations) or ()]
    return module


if not {_SDK, _TYPES, "langsmith.client"} & sys.modules.keys():
    sys.modules[_SDK] = None  # type: ignore[assignment]  # its import fails now
    sys.modules[_TYPES] = _bare("langsmith", "types")
    try:
        import langsmith.client  # noqa: F401
    finally:
        del sys.modules[_SDK], sys.modules[_TYPES]
