"""What is to be measured on a GPU, as one prepared run: `python -m attention_residuals.bench.gpu --out FOLDER`."""
