"""Models, policies and deaths for the tests of the engine."""
