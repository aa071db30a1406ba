"""What tests share: the only package of tests that other tests import from."""
