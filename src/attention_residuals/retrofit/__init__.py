"""Pretrained models of `transformers` with depth attention in place of the residual sum, from the same logits on."""

from attention_residuals.retrofit import families as families  # declares its architectures
from attention_residuals.retrofit.adapters import load_depth, save_depth
from attention_residuals.retrofit.convert import retrofit
from attention_residuals.retrofit.declarations import Stack, Sublayer, declare, declared
from attention_residuals.retrofit.folders import load_retrofitted, retrofit_folder
from attention_residuals.retrofit.report import Report, StackReport
from attention_residuals.retrofit.tuning import (
    TokenWindows,
    TuneConfig,
    Tuned,
    TuningText,
    add_lora,
    read_tuning_text,
    trainable,
    tune,
)

__all__ = [
    "Report",
    "Stack",
    "StackReport",
    "Sublayer",
    "TokenWindows",
    "TuneConfig",
    "Tuned",
    "TuningText",
    "add_lora",
    "declare",
    "declared",
    "load_depth",
    "load_retrofitted",
    "read_tuning_text",
    "retrofit",
    "retrofit_folder",
    "save_depth",
    "trainable",
    "tune",
]
