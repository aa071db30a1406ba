"""An MCP server that uses the site's own API. Programs such as coding agents read runs, and control them if allowed."""
