"""Models, policies and worker deaths for the tests of the engine."""
