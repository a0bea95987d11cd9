#!/usr/bin/env bash
# Runs bertjax in several processes on this machine, to test a run with several hosts.
#
#   launch/local_hosts.sh N --config=configs/pretrain_tiny.py --workdir=out/hosts [--config.KEY=VALUE ...]
#
# Process I writes its output to WORKDIR/host-I.log, or for a bucket to a temporary folder. Process 0 also prints it. The
# exit status is that of process 0 or, if that is 0, of another process that failed. Ctrl-C and SIGTERM are sent to all
# processes.

set -euo pipefail
. "$(dirname "$0")/common.sh"

[[ ${1:-} == --help ]] && { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0; }
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || stop "${1:-nothing}: expected a number of processes; launch/local_hosts.sh N --config=... --workdir=..."
count=$1
shift
workdir=''
for argument in "$@"; do
  [[ $argument == --workdir=* ]] && workdir=${argument#--workdir=}
done
need workdir
expand_home workdir
logs=$workdir
[[ $workdir != *://* ]] || logs=$(mktemp -d)
mkdir -p "$logs"
[[ $logs == "$workdir" ]] || say "the output of each process is in $logs"
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
common=(-m bertjax.main "$@" "--coordinator_address=127.0.0.1:$port" "--num_processes=$count")

# Job control puts each process into its own process group. Otherwise background processes would ignore Ctrl-C. A
# terminal sends Ctrl-C only to this script, which forwards it.
set -m
pids=() received=''
forward() {
  received=$1
  kill "-$1" "${pids[@]}" 2>/dev/null || true
}
trap 'forward INT' INT
trap 'forward TERM' TERM HUP
for ((i = 0; i < count; i++)); do
  if ((i == 0)); then
    python "${common[@]}" "--process_id=$i" > >(tee "$logs/host-$i.log") 2>&1 < /dev/null &
  else
    python "${common[@]}" "--process_id=$i" > "$logs/host-$i.log" 2>&1 < /dev/null &
  fi
  pids+=($!)
done
set +m # With job control, bash would print how each process ends.
[[ ! $received ]] || forward "$received" # also to processes that started after the signal

status=0
for ((i = count - 1; i >= 0; i--)); do
  result=0
  # A signal to this script interrupts `wait`, but does not end the process.
  while kill -0 "${pids[i]}" 2>/dev/null; do wait "${pids[i]}" || true; done
  wait "${pids[i]}" || result=$?
  ((result == 0)) || { ((i == 0)) || say "process $i: status $result, see $logs/host-$i.log"; status=$result; }
done
exit "$status"
