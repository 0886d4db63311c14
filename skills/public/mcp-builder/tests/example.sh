# The template passes its own check.
set -eu
python3 "$SKILL/scripts/check_server.py" --calls "$SKILL/examples/calls.json" -- python3 "$SKILL/templates/server.py" | grep "4 calls tried"
