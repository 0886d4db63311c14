# The start of the agent in a container of ours, after the functions of agent.sh.

exec >/dev/null 2>&1
# Outside of a container of ours, a sweep would end the processes of the whole machine.
kind /proc/1 ''
[ "$kind" = part ] || exit 1
cd "$SIKA_RECORDS" || exit 1
missing=''
for tool in env kill mkdir mkfifo sleep tail tee wc; do
  command -v "$tool" >/dev/null || missing="$missing $tool"
done
echo "missing:$missing" >"ready.$SIKA_PART"
