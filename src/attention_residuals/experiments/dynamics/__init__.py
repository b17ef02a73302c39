"""What happens along the depth, from run folders: findings in numbers, figures, report. Knows no torch."""
