"""An MCP server for the tests, built with the official SDK."""
