# shellcheck shell=bash
# The slice of tpu_vm.sh: what gcloud says of it, how it is asked for, how it is deleted.
# Takes that launcher's options, and its gcloud_tpus; sets `costs` wherever there may be a slice.
# shellcheck disable=SC2034,SC2154 # the launcher's variables

# Of the accelerator types those of v2 to v5p are counted in cores, two of a chip.
chips() {
  local number=${type##*-}
  [[ $type == *-* && $number =~ ^[1-9][0-9]*$ ]] ||
    stop "--type=$type: found no number, expected one such as v5litepod-16, v5p-32 or v6e-16"
  case $type in
    v5litepod-* | v6e-*) echo "$number" ;;
    v2-* | v3-* | v4-* | v5p-*) echo $(((number + 1) / 2)) ;;
    *) stop "--type=$type: found an unknown kind, expected v2, v3, v4, v5litepod, v5p or v6e with a number" ;;
  esac
}

runtime_version() {
  case $type in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

# described WHAT FORMAT: a state, NONE where gcloud says that there is no such thing, UNKNOWN where it could not say.
described() {
  local said
  if said=$(gcloud_tpus "$1" describe "$name" "--format=value($2)" 2>&1); then
    grep -Eo '^[A-Z_]+$' <<<"$said" | tail -n 1 || echo UNKNOWN
  elif [[ $said == *NOT_FOUND* ]]; then
    echo NONE
  else
    say "cannot tell whether $name is there: ${said##*$'\n'}"
    echo UNKNOWN
  fi
}

# Of the request: WAITING_FOR_RESOURCES, PROVISIONING, FAILED, SUSPENDED, ...; where it is ACTIVE, that of the machines,
# which are taken away before the request knows: PREEMPTED, GONE, ... or ACTIVE, when they can be used.
state() {
  local now
  now=$(described queued-resources state.state)
  if [[ $now == ACTIVE ]]; then
    now=$(described tpu-vm state)
    case $now in
      READY) now=ACTIVE ;;
      NONE) now=GONE ;;
    esac
  fi
  echo "$now"
}

is_lost() { [[ $1 =~ ^(NONE|GONE|FAILED|SUSPENDED|PREEMPTED|TERMINATED|STOPPED)$ ]]; }

# Waits until the slice can be used; 4 when it was taken away, as spot ones are, 1 when it was refused.
await() {
  local now before=''
  if [[ $dry_run ]]; then
    state >/dev/null
    return
  fi
  while now=$(state); [[ $now != ACTIVE ]]; do
    if is_lost "$now"; then
      say "the slice $name is not to be had: $now"
      [[ $now == NONE || $now == FAILED ]] || return 4
      return 1
    fi
    [[ $now == "$before" ]] || say "waiting for $name: $now"
    before=$now
    sleep "$wait_seconds"
  done
  say "$name is there"
}

# 4 when it was taken away before it was there, else 1; nothing is left then.
create() {
  need type
  local count now status=1
  count=$(chips) || exit
  cost "$count"
  if [[ ! $dry_run ]]; then
    now=$(state)
    # A creation that fails is cleared away, so it must not be that of another.
    [[ $now == NONE ]] || { say "error: $name: found it already there ($now), or could not tell; nothing was created"; return 2; }
  fi
  costs=yes
  if gcloud_tpus queued-resources create "$name" "--node-id=$name" "--accelerator-type=$type" \
    "--runtime-version=${runtime:-$(runtime_version)}" ${spot:+--spot}; then
    status=0
    await || status=$?
    if ((status == 0)); then
      [[ $verb != create ]] || costs=''
      return
    fi
  fi
  delete || return 1
  say "nothing is left running"
  return "$status"
}

# Until gcloud says that there is nothing, which is not what the status of its deletion says.
delete() {
  local tries now
  costs=yes
  for tries in 1 2 3 4 5; do
    gcloud_tpus queued-resources delete "$name" --force --quiet || true
    [[ ! $dry_run ]] || return 0
    now=$(state)
    if [[ $now == NONE ]]; then
      costs=''
      return
    fi
    say "$name is not deleted yet ($now), try $tries of 5"
    sleep "$wait_seconds"
  done
  return 1
}
