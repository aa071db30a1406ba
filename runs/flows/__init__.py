"""Flows: graphs of agents, tools, questions and constants. Definition and kernel are pure; the runner has effects."""
