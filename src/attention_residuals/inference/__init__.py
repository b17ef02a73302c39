"""Text out of a trained model."""

from attention_residuals.inference.generate import sample

__all__ = ["sample"]
