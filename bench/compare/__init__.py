"""What peers repeat, report and wait for when the process of an agent is killed: the facts of docs/comparison.md."""
