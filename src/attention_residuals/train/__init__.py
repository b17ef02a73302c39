"""Text, optimisers and schedules, a visible loop, checkpoints, run folders, probes and alarms."""

from attention_residuals.errors import TrainingStoppedError
from attention_residuals.train.alarms import AlarmLimits, Alarms
from attention_residuals.train.checkpoints import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
from attention_residuals.train.config import Precision, Recompute, TrainConfig
from attention_residuals.train.engine import Engine, LocalEngine
from attention_residuals.train.execution import require_device
from attention_residuals.train.locks import run_lock
from attention_residuals.train.loop import (
    Training,
    conclude,
    evaluate,
    save_training,
    start_training,
    training_steps,
)
from attention_residuals.train.losses import token_losses
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
from attention_residuals.train.resume import read_config, resume_training
from attention_residuals.train.runs import RunFolder, require_absent
from attention_residuals.train.schedules import WSD, Constant, Cosine, Schedule
from attention_residuals.train.team import ALONE, Team, assembled
from attention_residuals.train.text import (
    ByteTokenizer,
    JsonTokenizer,
    TextConfig,
    TokenData,
    Tokenizer,
    bits,
    load_text,
)
from attention_residuals.train.trained import Trained, load_trained

__all__ = [
    "ALONE",
    "HIDDEN_MATRICES",
    "MATRICES_AND_QUERIES",
    "WSD",
    "AdamW",
    "AlarmLimits",
    "Alarms",
    "ByteTokenizer",
    "CheckpointError",
    "Constant",
    "Cosine",
    "Engine",
    "JsonTokenizer",
    "LocalEngine",
    "Muon",
    "Optimizer",
    "Optimizers",
    "Precision",
    "Probe",
    "Recompute",
    "RunFolder",
    "Schedule",
    "Team",
    "TextConfig",
    "TokenData",
    "Tokenizer",
    "TrainConfig",
    "Trained",
    "Training",
    "TrainingStoppedError",
    "assembled",
    "bits",
    "build_optimizers",
    "conclude",
    "evaluate",
    "latest_checkpoint",
    "load_checkpoint",
    "load_text",
    "load_trained",
    "probe",
    "read_config",
    "require_absent",
    "require_device",
    "resume_training",
    "run_lock",
    "save_checkpoint",
    "save_training",
    "start_training",
    "token_losses",
    "training_steps",
]
