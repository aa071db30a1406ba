"""Flow runs: their creation, the only writer of their snapshot and status, and the runs of their nodes."""
