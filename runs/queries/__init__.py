"""Fast reads: the hot lists as JSON made in SQL, and search."""
