#!/usr/bin/env bash
# Trains on Cloud TPU VMs: one machine, or a slice of several.
#
#   launch/tpu_vm.sh VERB --name=NAME --zone=ZONE --type=v5litepod-16 [options] -- --config=... --workdir=gs://...
#
#   up       create, install and train; repeat after a preemption; delete the slice at the end. If the slice exists, use
#            it; if the training is running, only follow it
#   create   request the slice, and wait until it can be used
#   install  install this checkout on every machine
#   train    start or resume the training on every machine
#   follow   print the first machine's output until the training ends; return the training's exit status
#   fetch    copy the workdir (--to=DIR)
#   status   show the state of the slice and of the training
#   delete   delete the slice
#
#   --project=ID       the project (default: the project of gcloud)
#   --runtime=VERSION  the TPU software version (default: the version for the type)
#   --spot             create a spot slice, which costs less and may be preempted at any time
#   --price=DOLLARS    the price per chip and hour; with --hours=N, prints the cost before anything is created
#   --mount=HOST:/SHARE  an NFS share that every machine mounts at /mnt/shared, for a workdir outside buckets
#   --keep             up: do not delete the slice at the end. After status 1 the slice is always kept, because its disk
#                      may have the only copy of some files
#   --restarts=N       up: the maximum number of restarts and new requests (20)
#   --to=DIR           fetch: the target folder (out)
#   --dry-run          print every command, run none
#
# gcloud must be installed and logged in. The workdir must be in a bucket (gs://, s3://) or on the share; `up` accepts
# another workdir only with --keep.

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
check_count restarts
wait_seconds=${LAUNCH_WAIT_SECONDS:-20}
place="--name=$name --zone=$zone${project:+ --project=$project}"
removal="launch/tpu_vm.sh delete $place"
costs='' # not empty while a slice may exist; the EXIT trap reports it

gcloud_tpus() { run gcloud compute tpus "$@" "--zone=$zone" ${project:+"--project=$project"}; }
on_all() { gcloud_tpus tpu-vm ssh "$name" --worker=all "--command=$1"; }
on_first() { gcloud_tpus tpu-vm ssh "$name" --worker=0 "--command=$1"; }

leave() {
  [[ ! $costs || $dry_run ]] || say "ATTENTION: $name may still exist and cost money; this deletes it: $removal"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command up to 5 times, because a new machine refuses connections for a while.
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
  # A file that was deleted but not committed does not exist.
  git -C "$here/.." ls-files -z | (cd "$here/.." && while IFS= read -r -d '' file; do
    [[ ! -e $file ]] || printf '%s\0' "$file"
  done) >"$folder/files" && run tar -C "$here/.." --null -T "$folder/files" -czf "$folder/bertjax.tgz" &&
    gcloud_tpus tpu-vm scp "$folder/bertjax.tgz" "$name:" --worker=all || status=$?
  rm -rf "$folder"
  return "$status"
}

install() {
  insist copy || return
  # The folder is not removed, because it may have a workdir. uv installs Python, because the machines have a version
  # older than 3.11.
  # shellcheck disable=SC2016 # the remote shell expands it
  insist on_all 'set -e
    mkdir -p bertjax && rm -rf bertjax/bertjax bertjax/configs && tar xzf bertjax.tgz -C bertjax
    export PATH=$HOME/.local/bin:$PATH
    command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
    [ -d venv ] || uv venv --quiet --python 3.12 venv
    uv pip install --quiet --python venv -e "bertjax[tpu,gcs,s3]"'
}

# Mounts the share. This is repeated before every training, because a restarted machine has lost the mount.
mount_share() {
  [[ ! $mount ]] || insist on_all "mountpoint -q /mnt/shared || {
    sudo apt-get -qq install -y nfs-common && sudo mkdir -p /mnt/shared && sudo mount $(printf '%q' "$mount") /mnt/shared && sudo chmod 1777 /mnt/shared
  }"
}

need_arguments() {
  ((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --; for example -- --config=configs/pretrain_base.py --workdir=gs://..."
}

# Prints the last --workdir= of the training, because bertjax uses the last one.
workdir() {
  local argument path=''
  for argument in "${arguments[@]}"; do
    [[ $argument == --workdir=* ]] && path=${argument#--workdir=}
  done
  [[ $path ]] || stop "found no --workdir=, expected the workdir of the training after --"
  echo "$path"
}

# Stops with an error if `up` would delete the workdir together with the machines' disks.
need_lasting_workdir() {
  local path
  path=$(workdir) || exit
  case $path in
    gs://?* | s3://?*) return ;;
    /mnt/shared | /mnt/shared/*) [[ ! $mount ]] || return 0 ;;
  esac
  [[ $keep ]] || stop "--workdir=$path: found a folder that is deleted with the machine, expected gs://..., s3://..., /mnt/shared/... with --mount, or --keep"
}

train() {
  local quoted
  quoted=$(printf '%q ' "${arguments[@]}")
  # The training continues if the connection ends. Its exit status is written to a file, because gcloud also fails for
  # other reasons. Processes of an earlier training are stopped first, because only one process can use a TPU.
  on_all "cd bertjax && touch ~/bertjax.log
    if old=\$(cat ~/bertjax.pid 2>/dev/null) && kill -TERM -- -\$old 2>/dev/null; then
      for i in \$(seq 120); do kill -0 -- -\$old 2>/dev/null || break; sleep 1; done
      kill -KILL -- -\$old 2>/dev/null
    fi
    rm -f ~/bertjax.status ~/bertjax.pid
    nohup setsid bash -c 'echo \$\$ > ~/bertjax.pid; \"\$@\"; echo \$? > ~/bertjax.status' - ~/venv/bin/python -m bertjax.main $quoted >> ~/bertjax.log 2>&1 < /dev/null &
    until [ -s ~/bertjax.pid ]; do sleep 0.2; done"
}

# Prints the state of the training on the first machine: an exit status, running, none (never started, or the machine was
# restarted), or unknown if the machine does not answer.
training() {
  local output
  # shellcheck disable=SC2016
  output=$(on_first 'if [ -s bertjax.status ]; then echo "training=$(cat bertjax.status)"
    elif [ -s bertjax.pid ] && kill -0 -- "-$(cat bertjax.pid)" 2>/dev/null; then echo training=running
    else echo training=none; fi') || true
  output=$(grep -Eo 'training=[a-z0-9]+' <<<"$output" | tail -n 1) || true
  output=${output#training=}
  echo "${output:-unknown}"
}

show() {
  # shellcheck disable=SC2016
  on_first 'tail -n +1 -F bertjax.log & pid=$!
    while [ ! -s bertjax.status ] && [ -s bertjax.pid ] && kill -0 -- "-$(cat bertjax.pid)"; do sleep 2; done 2>/dev/null
    sleep 2; kill $pid'
}

follow() {
  local code
  show || true
  code=$(training)
  [[ ! $dry_run ]] || return 0
  [[ $code =~ ^[0-9]+$ ]] || { say "$name: the connection ended, and the state of the training is: $code"; return 255; }
  return "$code"
}

status() {
  echo "$name: $(state)"
  echo "training: $(training)"
  on_first 'tail -n 3 bertjax.log'
}

fetch() {
  local path
  path=$(workdir) || exit
  run mkdir -p "$to"
  if [[ $path == gs://* || $path == s3://* ]]; then
    run gcloud storage cp --recursive "$path" "$to"
  else
    [[ $path == /* ]] || path=bertjax/$path
    gcloud_tpus tpu-vm scp --recurse "$name:$path" "$to" --worker=0
  fi
}

# Sets `end` to the final exit status (1, 2 or 3) of any machine. After such an exit, the other machines end with 4,
# because they lost a process. The first machine may be one of them.
find_final_status() {
  local output
  # shellcheck disable=SC2016
  output=$(on_all 'echo "ended=$(cat bertjax.status)"') || true
  output=$(grep -Eo 'ended=[123]$' <<<"$output" | sort | head -n 1) || true
  [[ ! $output ]] || end=${output#ended=}
}

# Follows the training until it ends or the slice is lost, and sets `end` to an exit status or `lost`. Only the state that
# gcloud reports decides whether the slice is lost; a broken connection does not.
watch() {
  local current
  while :; do
    show || true
    end=$(training)
    [[ ! $dry_run ]] || { end=0; return; }
    if [[ $end =~ ^[0-9]+$ ]]; then
      end=$((10#$end))
      ((end < 4)) || find_final_status
      return
    fi
    current=$(state)
    is_lost "$current" && { end=lost; return; }
    # An active machine without a training was restarted.
    [[ $current == ACTIVE && $end == none ]] && { end=75; return; }
    sleep "$wait_seconds"
  done
}

# Keeps the slice after status 1, because the first machine may have the only copy of files that it could not publish.
keep_slice() {
  local path
  path=$(workdir)
  [[ $path != *://* ]] || path=../.cache/bertjax/workdirs # the copies of buckets
  keep=yes
  say "$name is kept, because its disk may have the only copy of some files. The same \`up\` tries again; to see the output and to copy the files:"
  say "  launch/tpu_vm.sh follow $place"
  say "  launch/tpu_vm.sh fetch $place -- --workdir=$(printf '%q' "$path")"
}

prepare() {
  [[ $slice == ACTIVE ]] || install || return
  mount_share
}

# Creates the slice, installs bertjax and starts the training, each only if needed. Then calls `watch`.
try() {
  local status=0
  if [[ $slice == NONE ]]; then
    create || status=$?
    ((status != 4)) || { end=lost; return; }
    ((status == 0)) || exit "$status"
    slice=BARE
  fi
  if [[ $end != running ]]; then
    if ! prepare; then
      is_lost "$(state)" || exit 1
      end=lost
      return
    fi
    # If the training starts on some machines only, these end because the others are missing.
    insist train || true
  fi
  watch
}

up() {
  need type
  need_arguments
  need_lasting_workdir
  chips >/dev/null
  git -C "$here/.." rev-parse --git-dir >/dev/null 2>&1 ||
    stop "$here/..: found no git checkout, expected one, whose files are copied to the machines; clone the repository"
  # The slice: NONE, BARE (exists, without a running training), ACTIVE (bertjax is installed), or another state.
  local slice=NONE end='' left=$restarts
  [[ $dry_run ]] || slice=$(state)
  [[ $slice != UNKNOWN ]] || { say "nothing was created"; exit 1; }
  if [[ $slice != NONE ]]; then
    costs=yes
    say "$name: $slice"
    if is_lost "$slice" || ! await; then
      delete || exit 1
      slice=NONE
    else
      end=$(training)
      [[ $end != unknown ]] || { say "cannot tell whether a training is running: nothing was changed"; exit 1; }
      [[ $end == running ]] || slice=BARE
    fi
  fi
  while :; do
    try
    case $end in
      0 | 1 | 2 | 3) break ;;
    esac
    if ((left == 0)); then
      say "stopped after $restarts restarts (--restarts): $end"
      [[ $end != lost ]] || end=4
      break
    fi
    left=$((left - 1))
    if [[ $end == lost ]]; then
      say "$name was preempted: requesting it again"
      [[ ! $costs ]] || delete || exit 1
      slice=NONE
    else
      say "the training stopped with status $end: restarting it"
      slice=ACTIVE
    fi
    sleep "$wait_seconds"
  done
  if ((end == 1)); then
    keep_slice
  fi
  [[ ! $keep ]] || exit "$end"
  [[ ! $costs ]] || delete || exit $((end ? end : 1))
  [[ $dry_run ]] || say "$name is deleted"
  exit "$end"
}

case $verb in
  install | train)
    [[ $verb == install ]] || need_arguments
    [[ $(training) != running ]] || stop "found a training that is running on $name, expected none; \`follow\` shows it"
    costs=yes
    [[ $verb == train ]] || install
    mount_share
    [[ $verb == install ]] || train ;;
  follow) costs=yes; follow ;;
  up | create | fetch | status | delete) "$verb" ;;
  *) stop "$verb: found no such verb, expected up, create, install, train, follow, fetch, status or delete" ;;
esac
