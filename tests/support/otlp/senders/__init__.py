"""Programs that send OTLP with others' libraries; each runs in a process of its own."""
