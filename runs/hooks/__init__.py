"""Hooks: site code that observes a run and decides its tool calls and turns."""
