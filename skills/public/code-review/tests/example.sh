# A planted defect is suspected.
set -eu
mkdir /tmp/repo && cd /tmp/repo && git init -q
echo 'import yaml' > a.py && git add .
git -c user.name=a -c user.email=a@example.org commit -qm a
echo 'print(yaml.load(open("x")))' >> a.py
python3 "$SKILL/scripts/scan.py" . | grep "a.py:2: high"
