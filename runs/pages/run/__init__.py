"""The page of one run: head, facts, banners, payloads, and the actions on it."""
