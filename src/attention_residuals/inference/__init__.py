"""Cached generation, bounded prefill, and taps along the depth of a trained model."""

from attention_residuals.inference.caches import GrowingCache, StaticCache
from attention_residuals.inference.generate import CHUNK_TOKENS, generate, stream
from attention_residuals.inference.prompts import Padding, Prompts
from attention_residuals.inference.sampling import GREEDY, Sampling
from attention_residuals.inference.session import Forward, Session, SessionCache
from attention_residuals.inference.taps import Tap, forward_with_taps

__all__ = [
    "CHUNK_TOKENS",
    "GREEDY",
    "Forward",
    "GrowingCache",
    "Padding",
    "Prompts",
    "Sampling",
    "Session",
    "SessionCache",
    "StaticCache",
    "Tap",
    "forward_with_taps",
    "generate",
    "stream",
]
