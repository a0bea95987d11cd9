#!/usr/bin/env bash
# Starts a Dask cluster, on machines that ssh reaches or on this one, and builds token stores and vocabularies on it.
#
#   launch/dask.sh --hosts=node1,node2 [options] -- --config=... --workdir=/shared/text --config.run=corpus
#
#   --hosts=A,B        machines for the workers, which ssh reaches without a password; without it they run here, for a try
#   --workers=N        worker processes on each machine (one a core)
#   --interface=NAME   the network interface by which the machines reach this one, such as eth0
#   --port=N           of the scheduler (any free one)
#   --python=PATH      the Python of the machines, with the extra dask (that of this shell, under the same path)
#   --dry-run          print every command, run none
#
# Every machine sees the workdir, the text and this folder under the same paths. The scheduler and the build run here.
# Logs are in WORKDIR/dask. The exit status is that of the build. Ctrl-C and SIGTERM end all of it.
# Whoever reaches the port of a Dask scheduler can run any program on its workers: use it in a network of your own.

set -euo pipefail
. "$(dirname "$0")/common.sh"

hosts='' workers='' interface='' port=0 python='' dry_run='' arguments=()
read_options 'hosts workers interface port python' 'dry_run' "$@"
((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --"
[[ ! $workers ]] || whole workers
[[ $port == 0 ]] || whole port
workdir=''
for argument in "${arguments[@]}"; do
  case $argument in
    --workdir=*) workdir=${argument#--workdir=} ;;
    --config.beam*) stop "$argument: found flags of Beam, expected none; this launcher gives them" ;;
  esac
done
need workdir
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
# One thread each: encoding text holds Python's lock. -1 is one a core.
worker=(-m dask worker "--scheduler-file=$file" "--nworkers=${workers:--1}" --nthreads=1 --no-dashboard --death-timeout=60)

# In groups of their own: so a terminal tells this script alone.
set -m
scheduler='' build='' pids=()
# shellcheck disable=SC2329 # the trap calls it
finish() {
  trap '' INT TERM HUP
  local deadline=$((SECONDS + 20)) pid
  # Workers end when their scheduler does, those of other machines too.
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
set +m # which would print how each of them ends
[[ ! $dry_run ]] || { wait; exit; }

# A build goes on with the workers that are left, and waits for ever where there are none.
lost=()
while kill -0 "$build" 2>/dev/null; do
  for i in "${!pids[@]}"; do
    [[ ${lost[i]:-} ]] || kill -0 "${pids[i]}" 2>/dev/null || {
      lost[i]=yes
      say "${machines[i]}: its workers have ended, see $(log "${machines[i]}")"
    }
  done
  if ((${#lost[@]} == ${#pids[@]})); then
    say "no workers are left: the build is ended; the same command continues it"
    exit 1
  fi
  sleep 0.5
done
status=0
wait "$build" || status=$?
build=''
exit "$status"
