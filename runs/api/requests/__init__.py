"""What a request may carry: bodies, query parameters, cursors and idempotency keys."""
