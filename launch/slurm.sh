#!/usr/bin/env bash
# Trains on GPU nodes of a Slurm cluster. After a preemption or the loss of a node, the job is requeued and continues.
#
#   launch/slurm.sh --nodes=2 --gpus=8 [options] -- --config=configs/pretrain_large.py --workdir=/shared/run
#
#   --time=HH:MM:SS    the time limit (24:00:00); two minutes before it, the job saves a checkpoint and is requeued
#   --restarts=N       the maximum number of requeues (100)
#   --cpus=N           the CPU cores per GPU; most clusters give one by default, which is few for loading and compiling
#   --partition=NAME --account=NAME
#   --activate=FILE    the file to source first (.venv/bin/activate)
#   --price=DOLLARS    the price per GPU and hour; with --hours=N, prints the cost
#   --dry-run          print the job and the command, run nothing
#
# Every node must see the workdir. Each GPU has one process. The processes find each other by Slurm's environment
# variables.

set -euo pipefail
. "$(dirname "$0")/common.sh"

nodes='' gpus='' cpus='' time=24:00:00 partition='' account='' activate=.venv/bin/activate restarts=100 price='' hours='' dry_run='' arguments=()
read_options 'nodes gpus cpus time partition account activate restarts price hours' 'dry_run' "$@"
need nodes gpus
expand_home activate
check_positive nodes gpus ${cpus:+cpus}
check_count restarts
((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --"
cost $((nodes * gpus))

quoted=$(printf '%q ' "${arguments[@]}")
job=$(
  cat <<JOB
#!/usr/bin/env bash
#SBATCH --job-name=bertjax
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$gpus
#SBATCH --gpus-per-node=$gpus${cpus:+
#SBATCH --cpus-per-task=$cpus}
#SBATCH --time=$time
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=bertjax-%j.log

source $(printf '%q' "$activate") || exit 2
# If a preemption signals this script as well, it waits until the processes have saved.
trap : TERM
status=0
# If a process ends with 1, 2 or 3, the others lose it and end with 4. srun returns the highest status. bertjax adds 200
# to 1, 2 and 3, so that srun returns them. No shell runs bertjax, because Slurm may signal only the program that it
# starts.
export BERTJAX_STATUS_OFFSET=200
srun --kill-on-bad-exit=0${cpus:+ --cpus-per-task=$cpus} \\
  python -m bertjax.main $quoted || status=\$?
((status < 200)) || status=\$((status - 200))
# 75: saved after a signal; 4: another process was lost; 137, 143: a process was killed. The requeued job continues.
case \$status in
  4 | 75 | 137 | 143)
    if ((\${SLURM_RESTART_COUNT:-0} < $restarts)); then
      scontrol requeue "\$SLURM_JOB_ID"
    else
      echo "stopped with status \$status after $restarts requeues (--restarts)"
    fi ;;
esac
exit "\$status"
JOB
)
[[ $dry_run ]] && printf '%s\n' "$job"
run sbatch ${partition:+"--partition=$partition"} ${account:+"--account=$account"} <<<"$job" || {
  say "sbatch refused the job: nothing was queued"
  exit 1
}
