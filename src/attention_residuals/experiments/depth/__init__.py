"""Where models read over their depth, from run folders: figures, findings, report. `runs` alone knows torch."""
