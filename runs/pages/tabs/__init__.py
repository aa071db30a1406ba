"""The tabs of a run other than timeline, tree and replay: one module for each."""
