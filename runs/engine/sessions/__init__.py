"""Runs that are sessions of a program: the program is held, heard, and told what was decided."""
