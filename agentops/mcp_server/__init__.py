"""An MCP server, with which programs such as coding agents read and control runs. It uses the site's HTTP API."""
