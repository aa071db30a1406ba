"""Follows the session files of agent programs while they grow, and stores what is new, here or on another site."""
