"""Timelines to render, and parsers for pages."""
