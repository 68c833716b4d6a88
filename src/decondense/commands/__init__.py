"""One file per command; ``decondense.cli`` puts them together. torch is imported inside the commands only."""
