#!/usr/bin/env bash
# Trains on Cloud TPU VMs: one machine, or a slice of several.
#
#   launch/tpu_vm.sh VERB --name=NAME --zone=ZONE --type=v5litepod-16 [options] -- --config=... --workdir=gs://...
#
#   up       all of it: create, install, train; again after a preemption; delete at the end. Where the slice is there
#            already it goes on with it, and only follows a training that runs
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
#   --mount=HOST:/SHARE  a file share (NFS) that every machine mounts at /mnt/shared, for a workdir in no bucket
#   --keep             up: do not delete at the end; nor is it after status 1, when something may be on its disk alone
#   --restarts=N       up: how often it is started again or asked for again (20)
#   --to=DIR           fetch: where to (out)
#   --dry-run          print every command, run none
#
# Needs gcloud, logged in. The workdir is a bucket's (gs://, s3://), or on the share. Without --keep `up` refuses another.

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
. "$here/tpu_slice.sh"

verb=${1:---help}
shift || true
[[ $verb == --* ]] && set -- "$verb" "$@"
name='' zone='' type='' project='' runtime='' price='' hours='' mount='' restarts=20 to=out spot='' keep='' dry_run='' arguments=()
read_options 'name zone type project runtime price hours mount restarts to' 'spot keep dry_run' "$@"
need name zone
[[ $restarts =~ ^[0-9]+$ ]] || stop "--restarts=$restarts: found no number"
wait_seconds=${LAUNCH_WAIT_SECONDS:-20}
place="--name=$name --zone=$zone${project:+ --project=$project}"
removal="launch/tpu_vm.sh delete $place"
costs='' # that there may be a slice, for whichever way the script ends

gcloud_tpus() { run gcloud compute tpus "$@" "--zone=$zone" ${project:+"--project=$project"}; }
on_all() { gcloud_tpus tpu-vm ssh "$name" --worker=all "--command=$1"; }
on_first() { gcloud_tpus tpu-vm ssh "$name" --worker=0 "--command=$1"; }

leave() {
  [[ ! $costs || $dry_run ]] || say "LOOK: $name may still be there and cost money; this deletes it: $removal"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A machine that is just there refuses connections for a while.
insist() {
  local tries
  for tries in 1 2 3 4 5; do
    "$@" && return
    sleep "$wait_seconds"
  done
  say "failed $tries times: $1"
  return 1
}

copy() {
  local folder status=0
  folder=$(mktemp -d)
  git -C "$here/.." ls-files -z >"$folder/files" && run tar -C "$here/.." --null -T "$folder/files" -czf "$folder/bertjax.tgz" &&
    gcloud_tpus tpu-vm scp "$folder/bertjax.tgz" "$name:" --worker=all || status=$?
  rm -rf "$folder"
  return "$status"
}

install() {
  insist copy || return
  # A workdir may lie in this folder, so it is not removed. The machines' own Python is older than 3.11.
  # shellcheck disable=SC2016 # for the shell over there
  insist on_all 'set -e
    mkdir -p bertjax && rm -rf bertjax/bertjax bertjax/configs && tar xzf bertjax.tgz -C bertjax
    export PATH=$HOME/.local/bin:$PATH
    command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
    [ -d venv ] || uv venv --quiet --python 3.12 venv
    uv pip install --quiet --python venv -e "bertjax[tpu,gcs,s3]"'
}

# Before every training: a machine that was started anew has not mounted it again.
mount_share() {
  [[ ! $mount ]] || insist on_all "mountpoint -q /mnt/shared || {
    sudo apt-get -qq install -y nfs-common && sudo mkdir -p /mnt/shared && sudo mount $(printf '%q' "$mount") /mnt/shared && sudo chmod 1777 /mnt/shared
  }"
}

need_arguments() {
  ((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --; for example -- --config=configs/pretrain_base.py --workdir=gs://..."
}

# The last --workdir= of the training, as the program takes it.
workdir() {
  local argument found=''
  for argument in "${arguments[@]}"; do
    [[ $argument == --workdir=* ]] && found=${argument#--workdir=}
  done
  [[ $found ]] || stop "found no --workdir=, expected that of the training after --"
  echo "$found"
}

# For `up`, which deletes the machines at the end, and what is on their disks.
need_lasting_workdir() {
  local found
  found=$(workdir) || exit
  case $found in
    gs://?* | s3://?*) return ;;
    /mnt/shared | /mnt/shared/*) [[ ! $mount ]] || return 0 ;;
  esac
  [[ $keep ]] || stop "--workdir=$found: found what is deleted with the machine, expected gs://..., s3://..., /mnt/shared/... with --mount, or --keep"
}

train() {
  local quoted
  quoted=$(printf '%q ' "${arguments[@]}")
  # It goes on when the connection ends. Its status lies in a file: that of gcloud may be gcloud's own.
  # What is left of the last one, on a machine that was slower to end, is ended first: a TPU is for one process.
  on_all "cd bertjax && touch ~/bertjax.log
    if old=\$(cat ~/bertjax.pid 2>/dev/null) && kill -TERM -- -\$old 2>/dev/null; then
      for i in \$(seq 120); do kill -0 -- -\$old 2>/dev/null || break; sleep 1; done
      kill -KILL -- -\$old 2>/dev/null
    fi
    rm -f ~/bertjax.status ~/bertjax.pid
    nohup setsid bash -c 'echo \$\$ > ~/bertjax.pid; \"\$@\"; echo \$? > ~/bertjax.status' - ~/venv/bin/python -m bertjax.main $quoted >> ~/bertjax.log 2>&1 < /dev/null &
    until [ -s ~/bertjax.pid ]; do sleep 0.2; done"
}

# Of the training, by the first machine: a status, running, none (never begun, or its machine was started anew), or
# unknown where it cannot be asked.
training() {
  local said
  # shellcheck disable=SC2016
  said=$(on_first 'if [ -s bertjax.status ]; then echo "training=$(cat bertjax.status)"
    elif [ -s bertjax.pid ] && kill -0 -- "-$(cat bertjax.pid)" 2>/dev/null; then echo training=running
    else echo training=none; fi') || true
  said=$(grep -Eo 'training=[a-z0-9]+' <<<"$said" | tail -n 1) || true
  said=${said#training=}
  echo "${said:-unknown}"
}

show() {
  # shellcheck disable=SC2016
  on_first 'tail -n +1 -F bertjax.log & shown=$!
    while [ ! -s bertjax.status ] && [ -s bertjax.pid ] && kill -0 -- "-$(cat bertjax.pid)"; do sleep 2; done 2>/dev/null
    sleep 2; kill $shown'
}

follow() {
  local code
  show || true
  code=$(training)
  [[ ! $dry_run ]] || return 0
  [[ $code =~ ^[0-9]+$ ]] || { say "$name: the training is $code, the connection ended"; return 255; }
  return "$code"
}

status() {
  echo "$name: $(state)"
  echo "training: $(training)"
  on_first 'tail -n 3 bertjax.log'
}

fetch() {
  local found
  found=$(workdir) || exit
  run mkdir -p "$to"
  if [[ $found == gs://* || $found == s3://* ]]; then
    run gcloud storage cp --recursive "$found" "$to"
  else
    [[ $found == /* ]] || found=bertjax/$found
    gcloud_tpus tpu-vm scp --recurse "$name:$found" "$to" --worker=0
  fi
}

# Where one machine ended for good, the others ended as they missed it, and so did the first: `end` is that one's then.
blame() {
  local said
  # shellcheck disable=SC2016
  said=$(on_all 'echo "ended=$(cat bertjax.status)"') || true
  said=$(grep -Eo 'ended=[123]$' <<<"$said" | sort | head -n 1) || true
  [[ ! $said ]] || end=${said#ended=}
}

# Follows until something is to be done, and sets `end`: a status, or lost. Only what gcloud says of the slice makes it
# lost; a connection that breaks says nothing.
watch() {
  local now
  while :; do
    show || true
    end=$(training)
    [[ ! $dry_run ]] || { end=0; return; }
    if [[ $end =~ ^[0-9]+$ ]]; then
      end=$((10#$end))
      ((end < 4)) || blame
      return
    fi
    now=$(state)
    is_lost "$now" && { end=lost; return; }
    # On a machine that is there and does not know the training: it was started anew.
    [[ $now == ACTIVE && $end == none ]] && { end=75; return; }
    sleep "$wait_seconds"
  done
}

# After status 1: a state that no bucket took is in a folder of the first machine, and nowhere else.
keep_what_is_left() {
  local found
  found=$(workdir)
  [[ $found == /* ]] || found=../.cache/bertjax/workdirs
  keep=yes
  say "$name is kept: what it could not publish may be on its disk alone. The same \`up\` tries again; what was said, and what is there:"
  say "  launch/tpu_vm.sh follow $place"
  say "  launch/tpu_vm.sh fetch $place -- --workdir=$(printf '%q' "$found")"
}

prepare() {
  [[ $now == ACTIVE ]] || install || return
  mount_share
}

# A slice where there is none, what is not on it yet, and the training: until something is to be done, see `watch`.
try() {
  local status=0
  if [[ $now == NONE ]]; then
    create || status=$?
    ((status != 4)) || { end=lost; return; }
    ((status == 0)) || exit "$status"
    now=BARE
  fi
  if [[ $end != running ]]; then
    if ! prepare; then
      is_lost "$(state)" || exit 1
      end=lost
      return
    fi
    # Where some machines could not be told, the others end as they miss them.
    insist train || true
  fi
  watch
}

up() {
  need type
  need_arguments
  need_lasting_workdir
  chips >/dev/null
  local now=NONE end='' left=$restarts
  [[ $dry_run ]] || now=$(state)
  [[ $now != UNKNOWN ]] || { say "nothing was created"; exit 1; }
  if [[ $now != NONE ]]; then
    costs=yes
    say "$name: $now"
    if is_lost "$now" || ! await; then
      delete || exit 1
      now=NONE
    else
      end=$(training)
      [[ $end != unknown ]] || { say "cannot tell what runs there: nothing was changed"; exit 1; }
      [[ $end == running ]] || now=BARE
    fi
  fi
  while :; do
    try
    case $end in
      0 | 1 | 2 | 3) break ;;
    esac
    if ((left == 0)); then
      say "stopped, as it was started again $restarts times (--restarts): $end"
      [[ $end != lost ]] || end=4
      break
    fi
    left=$((left - 1))
    if [[ $end == lost ]]; then
      say "$name was taken away: it is asked for again"
      [[ ! $costs ]] || delete || exit 1
      now=NONE
    else
      say "the training stopped with status $end: it is started again"
      now=ACTIVE
    fi
    sleep "$wait_seconds"
  done
  if ((end == 1)); then
    keep_what_is_left
  fi
  [[ ! $keep ]] || exit "$end"
  [[ ! $costs ]] || delete || exit $((end ? end : 1))
  [[ $dry_run ]] || say "$name is deleted"
  exit "$end"
}

case $verb in
  install | train)
    [[ $verb == install ]] || need_arguments
    [[ $(training) != running ]] || stop "a training runs on $name; \`follow\` shows it"
    costs=yes
    [[ $verb == train ]] || install
    mount_share
    [[ $verb == install ]] || train ;;
  follow) costs=yes; follow ;;
  up | create | fetch | status | delete) "$verb" ;;
  *) stop "$verb: found no such verb, expected up, create, install, train, follow, fetch, status or delete" ;;
esac
