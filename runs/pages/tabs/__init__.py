"""The tabs of a run besides its timeline, tree and replay: one module for each."""
