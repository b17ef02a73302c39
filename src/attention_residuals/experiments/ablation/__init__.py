"""Which part of the method does what: its variants, block sizes and rivals at one size."""
