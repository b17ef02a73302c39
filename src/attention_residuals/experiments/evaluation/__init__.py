"""What trained models know: tasks through `lm-eval`, by name or made from a run's own held-out text."""
