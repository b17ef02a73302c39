#!/usr/bin/env bash
# A run over four machines of eight GPUs, for Slurm: pipelines over machines, FSDP2 and shared matrices inside each.
# A lost machine or a requeue starts the same command again, which goes on from the last checkpoint.
#SBATCH --job-name=attnres
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --requeue
set -euo pipefail

export OMP_NUM_THREADS=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # a new meeting point for every attempt, whoever joins it
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
out=${OUT:-runs/$SLURM_JOB_ID}  # the id stays the same after a requeue; the folder is on a disk that all machines share

srun torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \
    -m attention_residuals.cli train english-block-large \
    device=cuda probe_every_steps=0 batch_sequences=64 \
    parallel.stages=4 parallel.shards=8 \
    parallel.pipeline.micro_batches=8 \
    --out "$out" --continue
