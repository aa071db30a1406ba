"""Projects isolate teams: members, permissions, API keys and the audit log."""
