"""The numbers of pipelines, as commands: `python -m attention_residuals.bench.distributed NAME`."""
