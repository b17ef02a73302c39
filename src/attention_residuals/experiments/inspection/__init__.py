"""Where a converted pretrained model reads over its depth, and what each source is worth to it."""
