"""Data, optimiser, a visible loop, run folders and probes."""

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
from attention_residuals.train.optimizer import OptimizerConfig, build_adamw, describe_groups
from attention_residuals.train.probes import Probe, probe
from attention_residuals.train.runs import RunFolder, require_absent
from attention_residuals.train.split import Split, split_documents

__all__ = [
    "ByteData",
    "Document",
    "OptimizerConfig",
    "Probe",
    "RunFolder",
    "Split",
    "TrainConfig",
    "Training",
    "TrainingStoppedError",
    "bits",
    "build_adamw",
    "conclude",
    "describe_groups",
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
