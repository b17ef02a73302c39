"""Data, optimiser, a visible loop, run folders and probes."""

from attention_residuals.train.loop import (
    TrainConfig,
    Training,
    TrainingStoppedError,
    conclude,
    evaluate,
    start_training,
    token_losses,
    training_steps,
)
from attention_residuals.train.optimizer import OptimizerConfig, build_adamw, describe_groups
from attention_residuals.train.probes import Probe, probe
from attention_residuals.train.runs import RunFolder, require_absent
from attention_residuals.train.text import (
    ByteTokenizer,
    JsonTokenizer,
    TextConfig,
    TokenData,
    Tokenizer,
    bits,
    load_text,
)

__all__ = [
    "ByteTokenizer",
    "JsonTokenizer",
    "OptimizerConfig",
    "Probe",
    "RunFolder",
    "TextConfig",
    "TokenData",
    "Tokenizer",
    "TrainConfig",
    "Training",
    "TrainingStoppedError",
    "bits",
    "build_adamw",
    "conclude",
    "describe_groups",
    "evaluate",
    "load_text",
    "probe",
    "require_absent",
    "start_training",
    "token_losses",
    "training_steps",
]
