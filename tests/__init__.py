import sys

# jsonschema, which the SDK of MCP imports, imports this if it is there, as with what builds images: 1.3 s per process.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
