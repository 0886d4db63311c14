# Profiles, asks and draws the example.
set -eu
S="$SKILL/scripts" DATA="$SKILL/examples/sales.csv"
python3 "$S/profile.py" "$DATA" | grep "exact copies"
python3 "$S/query.py" "SELECT COUNT(*) FROM sales" "$DATA" | grep 73
python3 "$S/chart.py" "$DATA" --kind line --x month --y revenue --by region --agg sum --title T --out /tmp/c.png
