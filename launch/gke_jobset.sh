#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster, as a JobSet. The cluster must have JobSet (jobset.sigs.k8s.io) installed.
#
#   launch/gke_jobset.sh VERB --name=NAME [options] -- --config=... --workdir=...
#
#   apply    start the training; after a preemption it restarts, up to --restarts=N times (100)
#   logs     follow the log of the first process
#   status   show the state of the JobSet and its pods
#   delete   delete the JobSet
#
#   --image=IMAGE      an image built from launch/Dockerfile, in a registry that the cluster can pull from
#   --accelerator=tpu-v5-lite-podslice --topology=4x4
#                      the values of the node pool; --chips-per-host=4, --slices=1
#   --claim=NAME       a volume claim that every pod mounts at /data, for workdir and text
#   --price=DOLLARS    the price per chip and hour; with --hours=N, prints the cost
#   --dry-run          print the manifest and every command, run none

set -euo pipefail
. "$(dirname "$0")/common.sh"

verb=${1:---help}
shift || true
[[ $verb == --* ]] && set -- "$verb" "$@"
name='' image='' accelerator='' topology='' chips_per_host=4 slices=1 claim='' restarts=100 price='' hours=''
dry_run='' arguments=()
read_options 'name image accelerator topology chips_per_host slices claim restarts price hours' 'dry_run' "$@"
need name
check_positive chips_per_host slices
check_count restarts

# The manifest has JSON strings, because they can contain any text, and YAML is a superset of JSON.
json() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }
string() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$1"; }

manifest() {
  local chips=1 side hosts volume='' mount=''
  [[ $topology =~ ^[1-9][0-9]*(x[1-9][0-9]*)+$ ]] || stop "--topology=$topology: expected a topology such as 4x4"
  for side in ${topology//x/ }; do chips=$((chips * side)); done
  hosts=$((chips / chips_per_host))
  ((hosts > 0 && hosts * chips_per_host == chips)) ||
    stop "--topology=$topology: found $chips chips, expected a multiple of --chips-per-host=$chips_per_host"
  cost $((chips * slices))
  if [[ $claim ]]; then
    mount="volumeMounts: [{name: data, mountPath: /data}]"
    volume="volumes: [{name: data, persistentVolumeClaim: {claimName: $(string "$claim")}}]"
  fi
  # The exit statuses 1, 2 and 3 are final. After any other end of a pod or a node, all pods restart.
  cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $(string "$name")
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $restarts
    rules:
    - action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: slice
    replicas: $slices
    template:
      spec:
        parallelism: $hosts
        completions: $hosts
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes: {containerName: bertjax, operator: In, values: [1, 2, 3]}
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: 300
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: $(string "$accelerator")
              cloud.google.com/gke-tpu-topology: $(string "$topology")
            containers:
            - name: bertjax
              image: $(string "$image")
              args: $(json "${arguments[@]}")
              ports: [{containerPort: 8471}, {containerPort: 8080}]
              resources:
                requests: {google.com/tpu: $chips_per_host}
                limits: {google.com/tpu: $chips_per_host}
              $mount
            $volume
YAML
}

apply() {
  need image accelerator topology
  ((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --"
  local text existing
  text=$(manifest)
  [[ ! $dry_run ]] || printf '%s\n' "$text"
  # A JobSet that cannot be created is deleted below, so no running JobSet may have the same name.
  existing=$(run kubectl get "jobset/$name" --ignore-not-found --output=name) || stop "kubectl cannot tell whether there is a JobSet $name: nothing was created"
  [[ ! $existing ]] || stop "--name=$name: found a JobSet of this name, expected none; launch/gke_jobset.sh delete --name=$name deletes it"
  if ! run kubectl apply -f - <<<"$text"; then
    if run kubectl delete "jobset/$name" --ignore-not-found; then
      say "the JobSet could not be created; nothing is left running"
    else
      say "ATTENTION: $name may still exist and cost money; this deletes it: launch/gke_jobset.sh delete --name=$name"
    fi
    return 1
  fi
  say "$name costs money until it ends, and its node pool while it has nodes; to delete it: launch/gke_jobset.sh delete --name=$name"
}

logs() { run kubectl logs --follow --tail=-1 "--selector=jobset.sigs.k8s.io/jobset-name=$name,batch.kubernetes.io/job-completion-index=0,jobset.sigs.k8s.io/job-index=0"; }
status() {
  run kubectl get "jobset/$name"
  run kubectl get pods "--selector=jobset.sigs.k8s.io/jobset-name=$name"
}
delete() { run kubectl delete "jobset/$name"; }

case $verb in
  apply | logs | status | delete) "$verb" ;;
  *) stop "$verb: found no such verb, expected apply, logs, status or delete" ;;
esac
