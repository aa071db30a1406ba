#!/usr/bin/env python
"""Runs a management command: `./manage.py …` is the same as the console script `agentops …`."""

from __future__ import annotations

from agentops.cli import main

if __name__ == "__main__":
    main()
