"""Tests, intervals and verdicts: numpy and scipy, no torch."""
