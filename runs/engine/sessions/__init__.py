"""Runs that are sessions of a program: this package runs the program, stores its output and sends it decisions."""
