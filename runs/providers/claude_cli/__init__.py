"""The `claude_cli` provider: sessions of Claude Code's command-line program, by its stream-json contract."""
