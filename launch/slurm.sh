#!/usr/bin/env bash
# Trains on GPU nodes of a Slurm cluster; preempted or after a lost node it is queued again and goes on.
#
#   launch/slurm.sh --nodes=2 --gpus=8 [options] -- --config=configs/pretrain_large.py --workdir=/shared/run
#
#   --time=HH:MM:SS    the longest it may take; two minutes before, the state is saved and the job is queued again
#   --restarts=N       how often it is queued again (100)
#   --partition=NAME --account=NAME
#   --activate=FILE    what to source first (.venv/bin/activate)
#   --price=DOLLARS    of a GPU and hour, --hours=N: to see what it will cost
#   --dry-run          print the job and the command, run nothing
#
# The workdir lies where every node sees it. There is a process a GPU; each finds the others by what Slurm tells it.

set -euo pipefail
. "$(dirname "$0")/common.sh"

nodes='' gpus='' time=24:00:00 partition='' account='' activate=.venv/bin/activate restarts=100 price='' hours='' dry_run='' arguments=()
read_options 'nodes gpus time partition account activate restarts price hours' 'dry_run' "$@"
need nodes gpus
whole nodes gpus restarts
((${#arguments[@]})) || stop "found no arguments of bertjax, expected them after --"
cost $((nodes * gpus))

quoted=$(printf '%q ' "${arguments[@]}")
job=$(
  cat <<JOB
#!/usr/bin/env bash
#SBATCH --job-name=bertjax
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$gpus
#SBATCH --gpus-per-node=$gpus
#SBATCH --time=$time
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=bertjax-%j.log

source $(printf '%q' "$activate")
# Where the signal of a preemption reaches these scripts as well, they wait for the processes that save.
trap : TERM
status=0
# Where a process ends with 1, 2 or 3 the others end with 4, as they miss it; srun's status is the highest, so those
# three are made higher than all others.
srun --kill-on-bad-exit=0 bash -c 'trap : TERM; "\$@"; status=\$?; exit \$((status < 1 || status > 3 ? status : 200 + status))' - \\
  python -m bertjax.main $quoted || status=\$?
((status < 200)) || status=\$((status - 200))
# 75: saved after a signal; 4: another process is lost; 137, 143: one was killed. All go on where they were.
case \$status in
  4 | 75 | 137 | 143)
    if ((\${SLURM_RESTART_COUNT:-0} < $restarts)); then
      scontrol requeue "\$SLURM_JOB_ID"
    else
      echo "stopped with status \$status, as it was queued again $restarts times"
    fi ;;
esac
exit "\$status"
JOB
)
[[ $dry_run ]] && printf '%s\n' "$job"
run sbatch ${partition:+"--partition=$partition"} ${account:+"--account=$account"} <<<"$job" || {
  say "sbatch refused it: nothing was queued"
  exit 1
}
