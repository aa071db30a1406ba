"""HTTP for all apps: limits, encodings, request IDs, health checks, error pages, and the guarded HTTP client."""
