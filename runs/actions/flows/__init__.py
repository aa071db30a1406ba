"""Decisions of people and programs about flows and flow runs."""
