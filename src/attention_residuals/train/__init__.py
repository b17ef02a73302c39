"""Data, optimisers and schedules, a visible loop, run folders, probes and alarms."""

from attention_residuals.train.alarms import AlarmLimits, Alarms
from attention_residuals.train.batches import ByteData, bits, to_tokens, unigram_entropy
from attention_residuals.train.corpus import Document, fingerprint, load_documents, read_documents, standard_library
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
from attention_residuals.train.split import Split, split_documents

OptimizerConfig = AdamW  # the command line's name for it, until that lets people choose an optimiser

__all__ = [
    "HIDDEN_MATRICES",
    "MATRICES_AND_QUERIES",
    "WSD",
    "AdamW",
    "AlarmLimits",
    "Alarms",
    "ByteData",
    "Constant",
    "Cosine",
    "Document",
    "Muon",
    "Optimizer",
    "OptimizerConfig",
    "Optimizers",
    "Probe",
    "RunFolder",
    "Schedule",
    "Split",
    "TrainConfig",
    "Training",
    "TrainingStoppedError",
    "bits",
    "build_optimizers",
    "conclude",
    "evaluate",
    "fingerprint",
    "load_documents",
    "probe",
    "read_documents",
    "require_absent",
    "split_documents",
    "standard_library",
    "start_training",
    "to_tokens",
    "token_losses",
    "training_steps",
    "unigram_entropy",
]
