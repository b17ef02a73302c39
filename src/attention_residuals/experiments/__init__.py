"""Questions, each with its command and its report."""
