"""What the site keeps in Redis, and how it reads it: as written by a stranger."""
