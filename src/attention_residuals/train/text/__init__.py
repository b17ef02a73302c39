"""Text for training: sources, tokenizers, a split without leakage, a token cache, batches."""

from attention_residuals.train.text.data import TokenData, bits
from attention_residuals.train.text.load import TextConfig, load_text
from attention_residuals.train.text.progress import Progress
from attention_residuals.train.text.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer

__all__ = ["ByteTokenizer", "JsonTokenizer", "Progress", "TextConfig", "TokenData", "Tokenizer", "bits", "load_text"]
