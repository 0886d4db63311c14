"""Write `tests/golden/schema.json` anew, after an additive change: python -m tests.golden.schema"""

from __future__ import annotations

import msgspec

from tests.golden.test_golden import SCHEMA, breaks, schema

if __name__ == "__main__":
    current = schema()
    if SCHEMA.exists():
        for broken in breaks(msgspec.json.decode(SCHEMA.read_bytes())["components"], current["components"]):
            print(f"NOT ADDITIVE {broken}")
    SCHEMA.write_bytes(msgspec.json.format(msgspec.json.encode(current), indent=1) + b"\n")
    print(f"{len(current['versions'])} event types")
