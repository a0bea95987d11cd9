#!/usr/bin/env bash
# Starts a Dask cluster, on this machine or on others by ssh, and builds a token store or a vocabulary on it.
#
#   launch/dask.sh --hosts=node1,node2 [options] -- --config=... --workdir=/shared/text --config.run=corpus
#
#   --hosts=A,B        machines for the workers, reachable by ssh without a password (default: this machine, for tests)
#   --workers=N        worker processes per machine (default: one per core)
#   --interface=NAME   the network interface through which the machines reach this one, such as eth0
#   --port=N           the port of the scheduler (default: any free port)
#   --python=PATH      the Python on the machines, with the extra dask (default: the path of this shell's Python)
#   --dry-run          print every command, run none
#
# All machines must see workdir, text and this folder under the same paths. The scheduler and the build run here. Logs
# are in WORKDIR/dask. The exit status is that of the build. Ctrl-C and SIGTERM stop the build and the cluster.
# Anyone who reaches the port of a Dask scheduler can run any program on its workers: use a private network.

set -euo pipefail
. "$(dirname "$0")/common.sh"

hosts='' workers='' interface='' port=0 python='' dry_run='' arguments=()
read_options 'hosts workers interface port python' 'dry_run' "$@"
((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --"
[[ ! $workers ]] || check_positive workers
[[ $port == 0 ]] || check_positive port
workdir=''
for argument in "${arguments[@]}"; do
  case $argument in
    --workdir=*) workdir=${argument#--workdir=} ;;
    --config.beam*) stop "$argument: found flags of Beam, expected none; this launcher sets them" ;;
  esac
done
need workdir
expand_home workdir python
[[ $workdir != *://* ]] || stop "--workdir=$workdir: found a bucket, expected a folder that every machine sees"

[[ $python ]] || python=$(python -c 'import sys; print(sys.executable)')
[[ $dry_run ]] || mkdir -p "$workdir/dask"
[[ $workdir == /* ]] || workdir=$PWD/$workdir
file=$workdir/dask/scheduler.json
machines=(here) address=(--host=127.0.0.1)
if [[ $hosts ]]; then
  IFS=, read -ra machines <<<"$hosts"
  address=(${interface:+"--interface=$interface"})
fi
# One thread per worker, because encoding text keeps Python's global lock. --nworkers=-1 means one worker per core.
worker=(-m dask worker "--scheduler-file=$file" "--nworkers=${workers:--1}" --nthreads=1 --no-dashboard --death-timeout=60)

# Job control puts each process into its own process group, so that Ctrl-C in a terminal reaches only this script.
set -m
scheduler='' build='' pids=()
# shellcheck disable=SC2329 # the trap calls it
finish() {
  trap '' INT TERM HUP
  local deadline=$((SECONDS + 20)) pid
  # Workers, even on other machines, end when their scheduler ends.
  for pid in $build $scheduler; do kill -TERM "-$pid" 2>/dev/null || true; done
  for pid in $build "${pids[@]}" $scheduler; do
    while kill -0 "$pid" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
    kill -KILL "-$pid" 2>/dev/null || true
  done
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

log() { if [[ $dry_run ]]; then echo /dev/null; else echo "$workdir/dask/$1.log"; fi; }

run rm -f "$file"
run python -m dask scheduler "--scheduler-file=$file" "--port=$port" --no-dashboard "${address[@]}" \
  >"$(log scheduler)" 2>&1 </dev/null &
scheduler=$!
until [[ $dry_run || -s $file ]]; do
  kill -0 "$scheduler" 2>/dev/null || stop "the scheduler has ended, see $(log scheduler)"
  sleep 0.1
done
for machine in "${machines[@]}"; do
  if [[ $hosts ]]; then
    command=$(printf '%q ' cd "$PWD")"&& exec $(printf '%q ' "$python" "${worker[@]}")"
    run ssh -o BatchMode=yes "$machine" "$command" >"$(log "$machine")" 2>&1 </dev/null &
  else
    run python "${worker[@]}" --host=127.0.0.1 >"$(log "$machine")" 2>&1 </dev/null &
  fi
  pids+=($!)
done
run python -m bertjax.main "${arguments[@]}" "--config.beam=--runner=DaskRunner --dask_scheduler_file=$(printf '%q' "$file")" </dev/null &
build=$!
set +m # With job control, bash would print how each process ends.
[[ ! $dry_run ]] || { wait; exit; }

# A build continues with the remaining workers, but waits forever if there are none.
lost=()
while kill -0 "$build" 2>/dev/null; do
  for i in "${!pids[@]}"; do
    [[ ${lost[i]:-} ]] || kill -0 "${pids[i]}" 2>/dev/null || {
      lost[i]=yes
      say "${machines[i]}: its workers have ended, see $(log "${machines[i]}")"
    }
  done
  if ((${#lost[@]} == ${#pids[@]})); then
    say "no workers are left: the build was stopped; the same command continues it"
    exit 1
  fi
  sleep 0.5
done
status=0
wait "$build" || status=$?
build=''
exit "$status"
