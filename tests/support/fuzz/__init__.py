"""Fuzzing of what reads foreign input: the JSON parser, the events of runners, and files of other programs.

`python -m tests.support.fuzz` feeds the targets with mutated recordings, guided by coverage (Atheris, libFuzzer).
"""
