"""Timelines to show, and pages to parse."""
