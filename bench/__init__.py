"""The measurements: each compares ours with a peer or a physical limit in the same run and prints the ratio."""
