# shellcheck shell=bash
# Functions of tpu_vm.sh that query, create and delete the TPU slice.
# They use the options of the launcher and its function gcloud_tpus, and set `costs` while a slice may exist.
# shellcheck disable=SC2034,SC2154 # the launcher's variables

# Prints the number of chips. The types v2, v3, v4 and v5p count cores, and a chip has two cores.
chips() {
  local number=${type##*-}
  [[ $type == *-* && $number =~ ^[1-9][0-9]*$ ]] ||
    stop "--type=$type: expected a type with a number, such as v5litepod-16, v5p-32 or v6e-16"
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

# describe RESOURCE FIELD: prints the state; NONE if gcloud reports that the resource does not exist; UNKNOWN if gcloud
# fails for another reason.
describe() {
  local output
  if output=$(gcloud_tpus "$1" describe "$name" "--format=value($2)" 2>&1); then
    grep -Eo '^[A-Z_]+$' <<<"$output" | tail -n 1 || echo UNKNOWN
  elif [[ $output == *NOT_FOUND* ]]; then
    echo NONE
  else
    say "cannot tell whether $name exists: ${output##*$'\n'}"
    echo UNKNOWN
  fi
}

# Prints the state of the queued resource: WAITING_FOR_RESOURCES, PROVISIONING, FAILED, SUSPENDED, ... If it is ACTIVE,
# prints the state of the machines instead: ACTIVE if they can be used, else PREEMPTED, GONE, ... The queued resource
# stays ACTIVE for a while after a preemption.
state() {
  local current
  current=$(describe queued-resources state.state)
  if [[ $current == ACTIVE ]]; then
    current=$(describe tpu-vm state)
    case $current in
      READY) current=ACTIVE ;;
      NONE) current=GONE ;;
    esac
  fi
  echo "$current"
}

is_lost() { [[ $1 =~ ^(NONE|GONE|FAILED|SUSPENDED|PREEMPTED|TERMINATED|STOPPED)$ ]]; }

# Waits until the slice can be used. Returns 4 if it was preempted, and 1 if the request failed.
await() {
  local current previous=''
  if [[ $dry_run ]]; then
    state >/dev/null
    return
  fi
  while current=$(state); [[ $current != ACTIVE ]]; do
    if is_lost "$current"; then
      say "the slice $name is not available: $current"
      [[ $current == NONE || $current == FAILED ]] || return 4
      return 1
    fi
    [[ $current == "$previous" ]] || say "waiting for $name: $current"
    previous=$current
    sleep "$wait_seconds"
  done
  say "$name is ready"
}

# Creates the slice and waits until it can be used. If that fails, it deletes the slice, and returns 4 after a
# preemption, else 1.
create() {
  need type
  local count current status=1
  count=$(chips) || exit
  cost "$count"
  if [[ ! $dry_run ]]; then
    current=$(state)
    # A slice that cannot be created is deleted below, so no other slice may have the same name.
    [[ $current == NONE ]] || { say "error: --name=$name: found a slice of this name, or no answer ($current), expected none; nothing was created"; return 2; }
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

# Deletes the slice. Repeats the deletion until gcloud reports that the slice does not exist, because the exit status of
# the deletion is not reliable.
delete() {
  local tries current
  costs=yes
  for tries in 1 2 3 4 5; do
    gcloud_tpus queued-resources delete "$name" --force --quiet || true
    [[ ! $dry_run ]] || return 0
    current=$(state)
    if [[ $current == NONE ]]; then
      costs=''
      return
    fi
    say "$name is not deleted yet ($current), try $tries of 5"
    sleep "$wait_seconds"
  done
  return 1
}
