# The agent of a container: a POSIX shell that reads this file on its standard input, then calls of `run`, `end` and
# `probe`. See calls.py for the record of a call, which is a directory below $SIKA_RECORDS.
#
# A command has SIKA_CALL in its environment, all of this file SIKA_PART. Nothing is forked to end a tree, so that a
# command that has used up all processes can be ended, too.

shell=sh
command -v bash >/dev/null && shell=bash

# run ID SECONDS BLOCKS PREFIX COMMAND [NAME=VALUE…]: starts a command, unless its record exists. BLOCKS of 512 bytes
# limit the size of a file. PREFIX are the words before the shell, none with a space in it.
run() {
  mkdir "$1" || return 0
  (
    job "$@" &
    echo $! >"$1/pid"
  )
}

# end ID VERDICT [REASON]: ends a command; of one that was never started, the verdict is its outcome.
end() {
  if mkdir "$1"; then
    echo "$2 -" >"$1/exit"
  else
    (stop "$@" &)
  fi
}

# listen ID FILE: writes what `sockets` shows into a file of a command's record.
listen() {
  [ -e "$1/exit" ] || (sockets "$1" >"$1/$2" &)
}

# sockets ID: shows the open files of a command's processes, but for the way out of its network, then the sockets of the
# network that listen: all of them would not fit an answer (remote/link.py, PART). The last line says that this is all.
sockets() {
  for process in /proc/[0-9]*; do
    kind "$process" "$1"
    [ "$kind" = mine ] || continue
    IFS= read -r line <"$process/cmdline"
    case $line in
    *"/forwarder.py"*) ;;
    *) ls -l "$process/fd" ;;
    esac
  done
  grep -h "^ *[0-9]*: [^ ]* [^ ]* 0A " /proc/net/tcp /proc/net/tcp6
  echo end
}

# probe ID: settles a command whose supervising shell was killed.
probe() {
  [ -e "$1/exit" ] && return
  read -r pid <"$1/pid" && kill -0 "$pid" && return
  (settle "$1" &)
}

stop() {
  [ -e "$1/exit" ] && return
  [ -z "$3" ] || echo "$3" >"$1/reason"
  echo "$2" >"$1/verdict"
  sweep "$1"
  probe "$1"
}

settle() {
  sweep "$1"
  verdict=interrupted
  [ ! -e "$1/verdict" ] || read -r verdict <"$1/verdict"
  publish "$1" "$verdict" -
}

publish() {
  echo "$2 $3" >"$1/exit"
}

job() {
  id=$1 seconds=$2 blocks=$3 prefix=$4 command=$5
  shift 5
  cd "$id" || exit
  ooms
  before=$ooms
  mkfifo out err out.count err.count
  drain stdout out &
  drain stderr err &
  (
    ulimit -f "$blocks"
    cd "$SIKA_WORKSPACE" && exec env -i "$@" "SIKA_CALL=$id." $prefix "$shell" -c "$command"
  ) >out 2>err &
  child=$!
  clock "$seconds" "$id" &
  clock=$!
  wait "$child"
  code=$?
  kill "$clock"
  sweep "$id"
  wait
  ooms
  [ "$ooms" = "$before" ] || echo $((ooms - before)) >ooms
  verdict=exited
  [ ! -e verdict ] || read -r verdict <verdict
  cd ..
  publish "$id" "$verdict" "$code"
}

# The head of a stream as it comes, up to the limit of a file's size; its tail and its length at the end.
drain() {
  trap '' 25 # SIGXFSZ: tee goes on without the file
  ulimit -f "$SIKA_HEAD"
  wc -c <"$2.count" >"$1.bytes" &
  tee "$1" "$2.count" <"$2" | tail -c "$SIKA_TAIL" >"$1.tail"
  wait
}

clock() {
  trap 'kill $!; exit' TERM
  sleep "$1" &
  wait $! || exit
  cd ..
  stop "$2" timeout
}

# Kills the processes of a call until there are none. One that has cleared its environment is killed when no other call
# has processes. A process that ended during a walk may have a child that the walk did not see: then it is repeated.
sweep() {
  rounds=0 quiet=0
  while [ $rounds -lt 300 ]; do
    rounds=$((rounds + 1)) alive='' strays='' others='' starting='' ended=''
    for process in /proc/[0-9]*; do
      kind "$process" "$1"
      case $kind in
      mine) alive="$alive ${process#/proc/}" ;;
      stray) strays="$strays ${process#/proc/}" ;;
      other) others=1 ;;
      starting) starting=1 ;;
      gone) ended=1 ;;
      esac
    done
    [ -n "$others" ] || alive="$alive$strays"
    if [ -n "$alive" ]; then
      quiet=0
      kill -9 $alive
    elif [ -z "$starting" ]; then
      quiet=$((quiet + 1))
      [ -n "$ended" ] && [ $quiet -lt 2 ] || return
    fi
  done
}

kind() {
  kind=gone
  read -r stat <"$1/stat" || return
  stat=${stat##*) }
  kind=stray
  case $stat in
  'Z '* | 'X '*)
    kind=gone
    return
    ;;
  ?' 0 '*) kind=entering ;; # its parent is outside: the engine is about to start a shell of ours
  esac
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
    *"SIKA_CALL=$2."*) kind=mine ;;
    *SIKA_CALL=*) kind=other ;;
    *SIKA_PART=*) kind=part ;;
    *) continue ;;
    esac
    return
  done <"$1/environ"
  [ $kind = stray ] && [ -r "$1/environ" ] || return
  set -- $stat
  [ "${48}" != 0 ] || kind=starting # a program whose environment is not there yet (proc(5): env_start)
}

ooms() {
  ooms=0
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    if [ -r "$file" ]; then
      while read -r key value; do
        [ "$key" != oom_kill ] || ooms=$value
      done <"$file"
    fi
  done
}
