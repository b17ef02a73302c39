"""Training of converted models: what is trained, on which text, and what comes of it."""

from attention_residuals.retrofit.tuning.config import TuneConfig
from attention_residuals.retrofit.tuning.lora import add_lora
from attention_residuals.retrofit.tuning.parts import Part, trainable
from attention_residuals.retrofit.tuning.text import TokenWindows, TuningText, read_tuning_text
from attention_residuals.retrofit.tuning.tune import Tuned, tune

__all__ = [
    "Part",
    "TokenWindows",
    "TuneConfig",
    "Tuned",
    "TuningText",
    "add_lora",
    "read_tuning_text",
    "trainable",
    "tune",
]
