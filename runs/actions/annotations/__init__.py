"""What people add to runs and to the list of runs: labels, notes, saved views, share links. All audited."""
