"""An MCP server for the tests, made with the official SDK."""
