"""Readers of transcripts that other programs have written, one module per format."""
