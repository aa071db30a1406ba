"""What people add to a run on its page: labels, notes and share links, and the report that a share link opens."""
