"""Benchmarks with every item kept, and tests that compare two sets of runs on the same items."""
