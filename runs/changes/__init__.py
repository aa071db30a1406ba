"""Changes of files by the tool calls of a run, without tables: edits, states of files, diffs and patches."""
