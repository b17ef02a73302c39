"""Pretrained models of `transformers` with depth attention in place of the residual sum, from the same logits on."""

from attention_residuals.retrofit import families as families  # declares its architectures
from attention_residuals.retrofit.convert import retrofit
from attention_residuals.retrofit.declarations import Stack, Sublayer, declare, declared
from attention_residuals.retrofit.folders import load_retrofitted, retrofit_folder
from attention_residuals.retrofit.report import Report, StackReport

__all__ = [
    "Report",
    "Stack",
    "StackReport",
    "Sublayer",
    "declare",
    "declared",
    "load_retrofitted",
    "retrofit",
    "retrofit_folder",
]
