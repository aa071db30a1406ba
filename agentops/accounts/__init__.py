"""Projects isolate teams: who may enter, with which keys, and what the audit log records."""
