"""A workbook for candidate-constrained retrieval-augmented generation."""

__version__ = "0.1.0"
