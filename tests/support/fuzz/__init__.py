"""Fuzzing of the code that reads foreign input: the JSON parser, the events of runners, and files of other programs.

`python -m tests.support.fuzz` feeds mutated recordings to the targets, guided by coverage (Atheris, libFuzzer).
"""
