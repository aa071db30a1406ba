"""Labels, notes, saved views, share links and exports in the API."""
