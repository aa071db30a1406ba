"""Follows the session files of agent programs while they grow, and stores new events, here or on another site."""
