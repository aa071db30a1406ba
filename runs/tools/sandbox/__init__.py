"""Tools that change files and run commands, off by default: file writing below the root, and a sandboxed shell."""
