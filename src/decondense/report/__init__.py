"""Figures and tables from result files. Nothing here imports torch."""
