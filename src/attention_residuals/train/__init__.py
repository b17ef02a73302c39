"""Text, optimisers and schedules, a visible loop, checkpoints, run folders, probes and alarms."""

from attention_residuals.train.alarms import AlarmLimits, Alarms
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
from attention_residuals.train.optimizers import (
    HIDDEN_MATRICES,
    MATRICES_AND_QUERIES,
    AdamW,
    Muon,
    Optimizer,
    Optimizers,
    build_optimizers,
)
from attention_residuals.train.probes import Probe, probe
from attention_residuals.train.runs import RunFolder, require_absent
from attention_residuals.train.schedules import WSD, Constant, Cosine, Schedule
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
    "HIDDEN_MATRICES",
    "MATRICES_AND_QUERIES",
    "WSD",
    "AdamW",
    "AlarmLimits",
    "Alarms",
    "ByteTokenizer",
    "Constant",
    "Cosine",
    "JsonTokenizer",
    "Muon",
    "Optimizer",
    "Optimizers",
    "Probe",
    "RunFolder",
    "Schedule",
    "TextConfig",
    "TokenData",
    "Tokenizer",
    "TrainConfig",
    "Training",
    "TrainingStoppedError",
    "bits",
    "build_optimizers",
    "conclude",
    "evaluate",
    "load_text",
    "probe",
    "require_absent",
    "start_training",
    "token_losses",
    "training_steps",
]
