# A new skill is made, and its placeholders are found.
set -eu
python3 "$SKILL/scripts/new_skill.py" demo --description "Shows a demo. Use when the user wants a demo." --in /tmp
! python3 "$SKILL/scripts/check_skill.py" /tmp/demo > /tmp/out
grep leftover /tmp/out
python3 "$SKILL/scripts/check_skill.py" "$SKILL"
