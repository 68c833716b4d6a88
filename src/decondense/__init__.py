"""Measure embedding condensation in Transformers, and train small language models that resist it."""

__version__ = "0.1.0"
