"""Mixtures of experts: whether depth attention helps them more than a dense model of the same active size."""
