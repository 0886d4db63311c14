# A small repository is surveyed, and a text about it checked.
set -eu
S="$SKILL/scripts"
mkdir /tmp/r && cd /tmp/r && git init -q
printf 'def main():\n    return 1\n\n\nif __name__ == "__main__":\n    main()\n' > app.py
printf 'test:\n\tpytest\n' > Makefile
git add . && git -c user.name=a -c user.email=a@example.org commit -qm a
python3 "$S/survey.py" . | grep "entries: app.py:5"
python3 "$S/history.py" . | grep "1 commits"
python3 "$S/find.py" . main | grep "definition: app.py:1"
echo 'It begins in `app.py:5`.' > /tmp/a.md
python3 "$S/check_refs.py" /tmp/a.md . | grep "1 of 1"
