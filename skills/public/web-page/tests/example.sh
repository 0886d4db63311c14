# The example becomes one file without errors.
set -eu
python3 "$SKILL/scripts/inline.py" "$SKILL/examples/bakery/index.html" --out /tmp/page.html
python3 "$SKILL/scripts/check_page.py" /tmp/page.html --single
