# What the agent of a container (docker/agent.sh) does otherwise in the all-in-one image: every order is a process of its
# own, `sh agent.sh TOKEN ORDER…`, and the image's own processes, which have no mark, are left alone.

# run ID SECONDS BLOCKS PREFIX COMMAND [NAME=VALUE…]
run() {
  mkdir "$1" || return 0
  (
    setsid sh "$0" "$token" job "$@" </dev/null >/dev/null 2>&1 &
    echo $! >"$1/pid"
  )
}

[ -n "$SIKA_ALONE" ] || sweep() {
  rounds=0
  while [ $rounds -lt 300 ]; do
    rounds=$((rounds + 1)) alive=''
    for process in /proc/[0-9]*; do
      kind "$process" "$1"
      [ "$kind" != mine ] || alive="$alive ${process#/proc/}"
    done
    [ -n "$alive" ] || return
    kill -9 $alive
  done
}

# go ID OUT ERR ROUNDS SECONDS BLOCKS PREFIX COMMAND [NAME=VALUE…]: starts a command, then as peek.
go() {
  id=$1 out=$2 err=$3 look=$4
  shift 4
  run "$id" "$@" >/dev/null 2>&1
  peek "$id" "$out" "$err" "$look"
}

# order FILE ORDER…: as the order, with further words from a file.
order() {
  file=$1
  shift
  . "./$file"
  rm -f "$file"
}

# finish ID ROUNDS VERDICT REASON: ends a command, then as peek.
finish() {
  end "$1" "$3" "$4" >/dev/null 2>&1
  peek "$1" 999999999 999999999 "$2"
}

# peek ID OUT ERR ROUNDS: waits for the end or for more output than OUT and ERR bytes, and shows it.
peek() {
  rounds=0
  while [ -d "$1" ] && [ ! -s "$1/exit" ] && [ "$rounds" -lt "$4" ]; do
    [ "$(size "$1/stdout")" -le "$2" ] && [ "$(size "$1/stderr")" -le "$3" ] || break
    [ $((rounds % 20)) -ne 19 ] || [ ! -e "$1/pid" ] || probe "$1" >/dev/null 2>&1
    rounds=$((rounds + 1))
    sleep 0.0$((rounds < 10 ? 2 : 9))
  done
  if [ ! -d "$1" ]; then
    echo none
  elif [ -s "$1/exit" ]; then
    echo ended
    tar czf "$1.tgz" -C "$1" --exclude=out --exclude=err --exclude='*.count' . 2>/dev/null
    emit "$1.tgz"
  else
    echo running
    part "$1/stdout" "$2"
    part "$1/stderr" "$3"
  fi
}

size() {
  if [ -e "$1" ]; then wc -c <"$1"; else echo 0; fi
}

part() {
  if [ -e "$1" ]; then tail -c "+$(($2 + 1))" "$1" | head -c "$SIKA_PART_BYTES" | base64 | tr -d '\n'; fi
  echo
}

# emit FILE: shows a small file; a large one stays, to be downloaded.
emit() {
  if [ "$(size "$1")" -gt "$SIKA_INLINE_BYTES" ]; then
    echo "file $1"
  else
    echo inline
    base64 <"$1" | tr -d '\n'
    echo
    rm -f "$1"
  fi
}

# forget ID…: deletes the files of calls; their directories stay, as the claims.
forget() {
  for id in "$@"; do rm -f "$id"/* "$id.tgz"; done
  echo ok
}

# list NAME: shows the entries of the thread's files: type, size, time of change, inode, mode, path.
list() {
  find "$SIKA_FILES" -mindepth 1 -printf '%y %s %C@ %i %m %P\0' >"$1" 2>/dev/null
  emit "$1"
}

# take NAMES ARCHIVE: shows an archive of the files that are named.
take() {
  tar cf "$2" -C "$SIKA_FILES" --null --no-recursion --ignore-failed-read -T "$1" 2>/dev/null
  rm -f "$1"
  emit "$2"
}

# put ARCHIVE LIST: deletes what `delete` in the archive names, extracts `tree`, then as list.
put() {
  tar xOf "$1" delete | (cd "$SIKA_ROOT" && xargs -0 -r rm -rf --) 2>/dev/null
  if problem=$(tar xf "$1" -C "$SIKA_ROOT" --no-same-owner -p --strip-components=1 tree 2>&1); then
    rm -f "$1"
    list "$2"
  else
    rm -f "$1"
    echo "failed $(echo "$problem" | head -c 500 | tr '\n' ' ')"
  fi
}

# usage: shows the KB on the disk, and the number, of the thread's files.
usage() {
  du -sk "$SIKA_FILES" 2>/dev/null | tr -dc '0-9\n'
  find "$SIKA_FILES" -mindepth 1 -printf x 2>/dev/null | wc -c
}

# clear: ends all commands, and deletes the thread's files and the records.
clear() {
  for id in call-*; do [ ! -d "$id" ] || sweep "$id"; done
  rm -rf "$SIKA_FILES"/* call-* machine
  echo ok
}

token=$1
shift
cd "$(dirname "$0")" || exit
mine=''
[ ! -e machine ] || read -r mine rest <machine
if [ "$mine" = "$token" ]; then "$@"; else echo lost; fi
