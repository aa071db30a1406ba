"""The `claude_cli` provider: sessions of Claude Code's command-line program, in its stream-json format."""
