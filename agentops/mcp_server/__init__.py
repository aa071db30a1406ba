"""An MCP server over the site's own API: programs such as coding agents look into runs, and control them if allowed."""
