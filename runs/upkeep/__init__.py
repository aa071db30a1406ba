"""Looking after what is stored: retention, invariants, the replay check, and what follows a restore."""
