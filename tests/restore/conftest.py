"""Registers the scripted model and its tools, which the drill's runs follow."""

from __future__ import annotations

from tests.crash import scripted

assert scripted.ScriptedProvider is not None
