# The citations of the example are right.
set -eu
EXAMPLE="$SKILL/examples/deliveries"
python3 "$SKILL/scripts/check_citations.py" "$EXAMPLE/report.md" --research "$EXAMPLE/research"
