#!/bin/bash
# A batch job of Slurm: trains on all GPUs of its machines and, if it is interrupted, continues in the next turn.
#
#   sbatch [--nodes 2] [--gpus-per-node 4 --ntasks-per-node 4] [--time 4:00:00] scripts/slurm.sh CONFIG.json [FLAG]...
#
# Shortly before the time limit (--signal) it saves, queues itself again and ends. It also queues itself again if it is
# preempted, with or without a GraceTime, or if its time limit comes without that signal. Whatever requeued it (those, a
# machine that failed, scontrol requeue), it continues from its newest checkpoint. scancel saves and ends it. An error
# ends the job with its exit code. TRAIN names another program than ./train.
#SBATCH --nodes 1 --ntasks-per-node 8 --gpus-per-node 8 --exclusive
#SBATCH --time 24:00:00 --signal B:USR1@300
#SBATCH --requeue --open-mode append

# requeue_if FACT: queues the job again if what Slurm says of it matches FACT. Of a job that scancel ends it says
# "JobState=COMPLETING ... PreemptTime=None", as of one that it has requeued itself.
requeue_if() {
  [[ ! $(scontrol show job "$SLURM_JOB_ID") =~ $1 ]] || scontrol requeue "$SLURM_JOB_ID"
}
again=
trap '[ "$again" ] || scancel --signal TERM "$SLURM_JOB_ID"; again=1' USR1  # once, to the ranks, not to this script
trap 'requeue_if "Reason=TimeLimit|PreemptTime=[0-9]"' TERM  # at once: SIGKILL follows, perhaps while the ranks save
# Every rank sees all GPUs of its machine and takes its own: NCCL copies directly only between GPUs that it sees.
srun --gpu-bind none --cpu-bind none "${TRAIN:-./train}" "$@" --resume &
while kill -0 $! 2>/dev/null; do wait $!; done  # a signal ends the wait, not the ranks
wait $!
code=$?
# 128 + SIGTERM: the ranks have more to do. Of a job that was not cancelled they end before Slurm ends it.
[ $code != 143 ] || requeue_if "JobState=(RUNNING|SIGNALING)"
exit $code
