#!/usr/bin/env bash
# Trains on Cloud TPU VMs: one machine, or a slice of several.
#
#   launch/tpu_vm.sh VERB --name=NAME --zone=ZONE --type=v5litepod-16 [options] -- --config=... --workdir=gs://...
#
#   up       all of it: create, install, train; again after a preemption; delete at the end
#   create   ask for the slice, and wait until it is there
#   install  this checkout, on every machine
#   train    begin on every machine, or go on
#   follow   the first machine's output, until the training ends; its exit status
#   fetch    copy the workdir (--to=DIR)
#   status   of the slice and of the training
#   delete   the slice; nothing is left running
#
#   --project=ID       --runtime=VERSION   where the usual ones are not meant
#   --spot             can be taken away at any time, and costs less
#   --price=DOLLARS    of a chip and hour, --hours=N: to see what it will cost before it is created
#   --mount=HOST:/SHARE  a file share (NFS) that every machine mounts at /mnt/shared, for the workdir of several
#   --keep             up: do not delete at the end
#   --to=DIR           fetch: where to (out)
#   --dry-run          print every command, run none
#
# Needs gcloud, logged in. One machine may have a bucket as its workdir; several need a folder that all of them see.

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

verb=${1:---help}
shift || true
[[ $verb == --* ]] && set -- "$verb" "$@"
name='' zone='' type='' project='' runtime='' price='' hours='' mount='' to=out spot='' keep='' dry_run='' arguments=()
read_options 'name zone type project runtime price hours mount to' 'spot keep dry_run' "$@"
need name zone
wait_seconds=${LAUNCH_WAIT_SECONDS:-20}

gcloud_tpus() { run gcloud compute tpus "$@" "--zone=$zone" ${project:+"--project=$project"}; }
on_all() { gcloud_tpus tpu-vm ssh "$name" --worker=all "--command=$1"; }
on_first() { gcloud_tpus tpu-vm ssh "$name" --worker=0 "--command=$1"; }

# Of the accelerator types those of v2 to v5p are counted in cores, two of a chip.
chips() {
  local number=${type##*-}
  [[ $number =~ ^[0-9]+$ ]] || stop "--type=$type: found no number, expected one such as v5litepod-16, v5p-32 or v6e-16"
  case $type in
    v5litepod-* | v6e-*) echo "$number" ;;
    *) echo $((number / 2)) ;;
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

# ACTIVE, WAITING_FOR_RESOURCES, PROVISIONING, FAILED, SUSPENDED, ...; NONE where there is no such request.
state() {
  [[ $dry_run ]] && { echo ACTIVE; return; }
  gcloud_tpus queued-resources describe "$name" '--format=value(state.state)' 2>/dev/null || echo NONE
}

create() {
  need type
  local count
  count=$(chips) || exit
  cost "$count"
  gcloud_tpus queued-resources create "$name" "--node-id=$name" "--accelerator-type=$type" \
    "--runtime-version=${runtime:-$(runtime_version)}" ${spot:+--spot} || { nothing_left; return 1; }
  local now before=''
  while now=$(state); [[ $now != ACTIVE ]]; do
    case $now in
      FAILED | SUSPENDED | SUSPENDING | NONE)
        say "the slice $name could not be had: $now"
        nothing_left
        return 1 ;;
    esac
    [[ $now == "$before" ]] || say "waiting for $name: $now"
    before=$now
    sleep "$wait_seconds"
  done
  say "$name is there"
}

# Removes what a request that failed may have left, and says so.
nothing_left() {
  delete || true
  if [[ $(state) == NONE ]]; then
    say "nothing is left running"
  else
    say "LOOK: $name may still be there and cost money: gcloud compute tpus queued-resources list --zone=$zone"
  fi
}

delete() { gcloud_tpus queued-resources delete "$name" --force --quiet; }

install() {
  local folder
  folder=$(mktemp -d)
  git -C "$here/.." ls-files -z >"$folder/files"
  run tar -C "$here/.." --null -T "$folder/files" -czf "$folder/bertjax.tgz"
  gcloud_tpus tpu-vm scp "$folder/bertjax.tgz" "$name:" --worker=all
  rm -rf "$folder"
  # The machines' own Python is older than 3.11.
  # shellcheck disable=SC2016 # for the shell over there
  on_all 'set -e
    rm -rf bertjax && mkdir bertjax && tar xzf bertjax.tgz -C bertjax
    export PATH=$HOME/.local/bin:$PATH
    command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
    [ -d venv ] || uv venv --quiet --python 3.12 venv
    uv pip install --quiet --python venv -e "bertjax[tpu,gcs]"'
  [[ ! $mount ]] || on_all "mountpoint -q /mnt/shared || {
    sudo apt-get -qq install -y nfs-common && sudo mkdir -p /mnt/shared && sudo mount $mount /mnt/shared && sudo chmod 1777 /mnt/shared
  }"
}

train() {
  ((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --; for example -- --config=configs/pretrain_base.py --workdir=gs://..."
  local quoted
  quoted=$(printf '%q ' "${arguments[@]}")
  # It goes on when the connection ends; its status is what `follow` waits for.
  on_all "cd bertjax && rm -f ~/bertjax.status && touch ~/bertjax.log
    nohup setsid bash -c '\"\$@\"; echo \$? > ~/bertjax.status' - ~/venv/bin/python -m bertjax.main $quoted >> ~/bertjax.log 2>&1 < /dev/null &"
}

follow() {
  # shellcheck disable=SC2016
  on_first 'tail -n +1 -F bertjax.log & until [ -f bertjax.status ]; do sleep 2; done; sleep 2; kill %1; exit "$(cat bertjax.status)"'
}

status() {
  echo "$name: $(state)"
  # shellcheck disable=SC2016
  on_first 'if [ -f bertjax.status ]; then echo "ended with status $(cat bertjax.status)"; else tail -n 3 bertjax.log; fi'
}

fetch() {
  local argument workdir=''
  for argument in "${arguments[@]}"; do
    [[ $argument == --workdir=* ]] && workdir=${argument#--workdir=}
  done
  [[ $workdir ]] || stop "found no --workdir=, expected that of the training after --"
  mkdir -p "$to"
  if [[ $workdir == gs://* ]]; then
    run gcloud storage cp --recursive "$workdir" "$to"
  else
    [[ $workdir == /* ]] || workdir=bertjax/$workdir
    gcloud_tpus tpu-vm scp --recurse "$name:$workdir" "$to" --worker=0
  fi
}

up() {
  need type
  local ready='' code
  while :; do
    if [[ ! $ready ]]; then
      if [[ $(state) == NONE || $dry_run ]]; then
        create || exit 1
      fi
      install
      ready=yes
    fi
    train
    while :; do
      code=0
      follow || code=$?
      # A connection that was lost is no end of the training.
      [[ $(ended "$code") == unknown && $(state) == ACTIVE ]] || break
      sleep "$wait_seconds"
    done
    case $(ended "$code") in
      done | failed) break ;;
    esac
    if [[ $(state) == ACTIVE ]]; then
      say "the training stopped with status $code: it is started again"
    else
      say "$name was taken away: it is asked for again"
      delete || true
      ready=
    fi
    sleep "$wait_seconds"
  done
  if [[ $keep ]]; then
    say "$name is still there and costs money: launch/tpu_vm.sh delete --name=$name --zone=$zone"
  else
    delete
    say "$name is deleted"
  fi
  exit "$code"
}

case $verb in
  up | create | install | train | follow | fetch | status | delete) "$verb" ;;
  *) stop "$verb: found no such verb, expected up, create, install, train, follow, fetch, status or delete" ;;
esac
