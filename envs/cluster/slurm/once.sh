#!/bin/bash
# PrologSlurmctld and Prolog of one Slurm: a slurmctld that was killed, and has forgotten its last
# seconds, begins no job again. A job waits until the controller's disk has its allocation; whether
# it has begun since, the node says in a folder beside this file, which both must see.
begun=$(dirname "$0")/begun/$SLURM_JOB_ID
mkdir -p "${begun%/*}"
[[ $SLURM_SCRIPT_CONTEXT == prolog_slurmd ]] && { touch "$begun"; exit 0; }
[[ -f ${0%/*}/slurm.conf ]] && export SLURM_CONF=${0%/*}/slurm.conf

now=$(date +%s)
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
until told=$(scontrol --oneliner show job "$job"); do sleep 1; done
value() { grep -oP "\b$1\s*=\s*\K\S+" <<< "$2" | head -1; }
start=$(date -d "$(value StartTime "$told")" +%s)
state=$(value StateSaveLocation "$(scontrol show config)")/job_state
# Whether something was written down since the job was given its nodes.
has() { (( $(stat -c %Y "$1" 2>/dev/null || echo 0) >= start )); }
# The file begins with the second in which it was written: "PROTOCOL_VERSION", 16 bits, 64 bits.
saved() { (( $(od -An -j23 -N8 -td8 --endian=big "$state" 2>/dev/null || echo 0) > now )); }

# A change that is none: Slurm saves its jobs after it, at most once in five seconds.
scontrol update JobId="$job" Requeue="$(value Requeue "$told")"
until saved; do sleep 0.5; done
if has "$begun.sent"; then # by a controller that was killed
    for _ in {1..10}; do has "$begun" || sleep 1; done
fi
# It runs already: with its end Slurm ends this too. Meanwhile Slurm minds no time limit.
end=$(date -d "$(value EndTime "$told")" +%s 2>/dev/null || echo 99999999999)
while has "$begun"; do
    (( $(date +%s) < end )) || scancel "$job"
    sleep 20
done
touch "$begun.sent"
