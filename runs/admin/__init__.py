from runs.admin import agents, conversation, record, runs, traces

__all__ = ["agents", "conversation", "record", "runs", "traces"]
