#!/usr/bin/env bash
# A few minutes of training on the GPUs of this machine over NCCL: FSDP2, then a pipeline, then a resumed run.
set -euo pipefail
gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" -eq 0 ]; then
    echo "no GPU here: nothing was run"
    exit 0
fi
out=${1:-runs/nccl-$(date +%Y%m%d-%H%M%S)}
run() {  # run NAME ASSIGNMENT...
    torchrun --standalone --nproc-per-node="$gpus" -m attention_residuals.cli train english-block-large \
        device=cuda probe_every_steps=0 batch_sequences=$((8 * gpus)) steps=200 checkpoint_every_steps=100 "${@:2}" --out "$out/$1"
}
run fsdp parallel.shards="$gpus"
if [ "$gpus" -gt 1 ]; then
    run pipeline parallel.stages="$gpus" parallel.pipeline.micro_batches=8
    run tensor parallel.tensor=2 parallel.shards=$((gpus / 2))
fi
attnres export "$out/fsdp" "$out/exported"
