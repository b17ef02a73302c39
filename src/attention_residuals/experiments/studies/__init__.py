"""Questions that many training runs answer together: planned from a config, run by processes, resumed at will."""
