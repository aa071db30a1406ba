"""Many posters to one run, while web processes and the database are killed: what arrives, and what others notice."""
