#!/bin/bash
# A batch job of Slurm: trains on all GPUs of its machines and, if it is interrupted, continues in the next turn.
#
#   sbatch [--nodes 2] [--gpus-per-node 4 --ntasks-per-node 4] [--time 4:00:00] scripts/slurm.sh CONFIG.json [FLAG]...
#
# Shortly before the time limit (--signal) it saves, queues itself again and ends. If the job is requeued for another
# reason - preemption, a machine that failed, scontrol requeue - it continues from its newest checkpoint too. scancel
# saves and ends it. An error ends the job with its exit code. TRAIN names another program than ./train.
#SBATCH --nodes 1 --ntasks-per-node 8 --gpus-per-node 8 --exclusive
#SBATCH --time 24:00:00 --signal B:USR1@300
#SBATCH --requeue --open-mode append

again=
trap '[ "$again" ] || scancel --signal TERM "$SLURM_JOB_ID"; again=1' USR1  # once, to the ranks, not to this script
# Every rank sees all GPUs of its machine and takes its own: NCCL copies directly only between GPUs that it sees.
srun --gpu-bind none --cpu-bind none "${TRAIN:-./train}" "$@" --resume &
while kill -0 $! 2>/dev/null; do wait $!; done  # a signal ends the wait, not the ranks
wait $!
code=$?
[ -z "$again" ] || [ $code != 143 ] || scontrol requeue "$SLURM_JOB_ID"  # 128 + SIGTERM: they have more to do
exit $code
