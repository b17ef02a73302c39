"""What of a converted model is worth training: queries over depth beside norm gains, low-rank matrices, and all."""
