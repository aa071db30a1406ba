"""The pages of one run: head, facts, banners, payloads, tabs, tree, replay, and the actions on it."""
