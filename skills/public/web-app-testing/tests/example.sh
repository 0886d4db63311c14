# The example shop is ordered from, where there is a browser.
set -eu
S="$SKILL/scripts"
python3 "$S/drive.py" --check || { test $? = 3; exit 0; }
cd /tmp
python3 "$S/with_server.py" --start "python3 -m http.server 8123 --directory $SKILL/examples/shop" --url http://127.0.0.1:8123 \
  -- python3 "$S/drive.py" http://127.0.0.1:8123 "$SKILL/examples/order.yaml" --out shots
