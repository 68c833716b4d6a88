"""Benchmarks with every item kept."""

from .harness import evaluate

__all__ = ["evaluate"]
