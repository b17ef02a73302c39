"""Peak memory of training, each model in a process of its own."""

import subprocess
import sys
from pathlib import Path

import torch

from attention_residuals.experiments.arms import residual_of
from attention_residuals.models import BYTE_VOCABULARY, DecoderConfig, build_decoder
from attention_residuals.train import AdamW, build_optimizers, token_losses

MEASURED_STEPS = 2


def measure_peak_bytes(
    model: str, layers: int, *, batch_sequences: int, sequence_tokens: int, device: str
) -> int | None:
    """Bytes a fresh training process holds at most, above what it held before its model was built.

    A few steps on random tokens. None where the system does not tell.
    """
    if sys.platform == "win32":
        return None
    arguments = map(str, (model, layers, batch_sequences, sequence_tokens, device))
    command = [sys.executable, "-W", "ignore", "-m", __name__, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _train_and_measure(model: str, layers: int, batch_sequences: int, sequence_tokens: int, device: str) -> int:
    before = _peak_bytes(device)
    config = DecoderConfig.from_depth(layers, vocab_size=BYTE_VOCABULARY, residual=residual_of(model))
    decoder = build_decoder(config, seed=0, device=device)
    optimizer = build_optimizers(decoder, AdamW())
    for _ in range(MEASURED_STEPS):
        batch = torch.randint(config.vocab_size, (batch_sequences, sequence_tokens + 1), device=device)
        token_losses(decoder, batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return _peak_bytes(device) - before


def _peak_bytes(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: its peak is handed down through fork and exec, so it would be the parent's.
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    name, *numbers, place = sys.argv[1:]
    print(_train_and_measure(name, *map(int, numbers), device=place))
