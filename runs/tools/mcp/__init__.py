"""Tools of MCP servers: configuration, sessions over stdio and HTTP, and the toolset of one server."""
