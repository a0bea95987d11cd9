#!/usr/bin/env bash
# Runs bertjax in several processes on this machine, as a slice with several hosts does; for trying it out.
#
#   launch/local_hosts.sh N --config=configs/pretrain_tiny.py --workdir=out/hosts [--config.KEY=VALUE ...]
#
# The first process prints here, and all of them into WORKDIR/host-I.log. The exit status is the first one's, or that
# of one that failed otherwise. Ctrl-C and SIGTERM reach all.

set -euo pipefail
. "$(dirname "$0")/common.sh"

[[ ${1:-} == --help ]] && { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0; }
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || stop "${1:-nothing}: found no number of processes; launch/local_hosts.sh N --config=... --workdir=..."
count=$1
shift
workdir=''
for argument in "$@"; do
  [[ $argument == --workdir=* ]] && workdir=${argument#--workdir=}
done
need workdir
mkdir -p "$workdir"
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
common=(-m bertjax.main "$@" "--coordinator_address=127.0.0.1:$port" "--num_processes=$count")

# In groups of their own: bash lets other processes in the background ignore Ctrl-C. So a terminal tells this script alone.
set -m
pids=() told=''
tell() {
  told=$1
  kill "-$1" "${pids[@]}" 2>/dev/null || true
}
trap 'tell INT' INT
trap 'tell TERM' TERM HUP
for ((i = 0; i < count; i++)); do
  if ((i == 0)); then
    python "${common[@]}" "--process_id=$i" > >(tee "$workdir/host-$i.log") 2>&1 < /dev/null &
  else
    python "${common[@]}" "--process_id=$i" > "$workdir/host-$i.log" 2>&1 < /dev/null &
  fi
  pids+=($!)
done
set +m # which would print how each of them ends
[[ ! $told ]] || tell "$told" # those that began after it

status=0
for ((i = count - 1; i >= 0; i--)); do
  one=0
  # A signal ends `wait` and not the process.
  while kill -0 "${pids[i]}" 2>/dev/null; do wait "${pids[i]}" || true; done
  wait "${pids[i]}" || one=$?
  ((one == 0)) || { ((i == 0)) || say "process $i: status $one, see $workdir/host-$i.log"; status=$one; }
done
exit "$status"
