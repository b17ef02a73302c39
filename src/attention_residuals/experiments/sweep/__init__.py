"""Depth against width and heads at fixed compute: where each residual stream has its best shape."""
