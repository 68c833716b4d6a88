"""Figures and tables from result files. Nothing here imports torch."""

from ..needs import need

need("page", "`decondense report`")
