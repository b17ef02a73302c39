"""What can be found out about a trained model on validation text; each answer is plain JSON."""
