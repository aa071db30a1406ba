"""Readers of transcripts that other programs have written: one file for each format."""
