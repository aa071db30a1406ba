"""Register the scripted model and its tools, which the runs of these tests use."""

from __future__ import annotations

from tests.support import scripted_model

assert scripted_model.ScriptedProvider is not None
