"""Request bodies, query parameters, cursors and idempotency keys."""
