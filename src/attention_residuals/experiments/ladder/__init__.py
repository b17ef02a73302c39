"""The scaling law: loss against compute at several sizes, and what depth attention is worth in compute."""
