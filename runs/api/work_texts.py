"""The descriptions of the bodies of `/api/work/…` in the OpenAPI document, by the class of the body and its field."""

from __future__ import annotations

#: Also the names of the classes in runs.remote.bodies.
BODIES: dict[str, dict[str, str]] = {
    "RegisterBody": {"agents": "The agents that this process can execute."},
    "OfferedAgent": {
        "name": "Name of the agent within the project: lower-case letters, digits and dashes.",
        "version": "Version of the code. New runs get it. A lower one than the stored one changes nothing.",
        "description": "What the agent does. Stored as its instructions.",
        "model": "The model that pages and prices of the project name. By default `any`.",
        "queue": "The queue of its runs.",
        "max_steps": "Steps that one run may make.",
        "settings": "Settings of the agent, such as `budgets` and `output_schema`. Merged with the stored ones.",
    },
    "ClaimBody": {
        "worker": "Name of this process, such as `host:pid:random`. Unique within the project.",
        "agents": "The agents that this process can execute, each with the versions of its code.",
        "queues": "The queues from which it takes runs.",
    },
    "HeartbeatBody": {
        "concurrency": "How many runs the process executes at most, for the page of workers.",
        "runs": "The runs that it holds, whose leases are renewed.",
    },
    "HeldRunBody": {"id": "ID of the run.", "epoch": "The epoch of the claim."},
    "StepsBody": {
        "epoch": "The epoch of the claim.",
        "ops": "Operations: `start`, `finish`, `fail`, `piece`, `text`, `log`, `receive` and `put`. Carried out in"
        " order and in one transaction, up to one that releases the run.",
    },
    "BatchBody": {"runs": "The runs, each with its operations. Each run at most once."},
    "RunOperations": {
        "id": "ID of the run.",
        "epoch": "The epoch of the claim.",
        "ops": "As in a request about the steps of one run.",
    },
    "StartStep": {
        "op": "Start a step, or get its outcome.",
        "key": "The identity of the step in the lineage. The code must choose the same key each time.",
        "kind": "What the step does.",
        "name": "What people see. It must be the same each time.",
        "effect": "Of `step` and `tool`: whether it may be repeated after its process died. `once`: a person decides.",
        "input": "Shown to people, and matched by approval rules.",
        "needs_approval": "Of `step` and `tool`: whether a person has to approve it, unless a rule decides.",
        "may_release": "False: the process works on other steps of the run, so a start does not release it.",
        "call_id": "Of `tool`: the model's ID of the call. By default, the key without `call:`.",
        "model": "Of `model`: the model that is called.",
        "expires_s": "Of `approval`, and of steps that need one: seconds until it is denied.",
        "question": "Of `question`: the text that a person answers.",
        "choices": "Of `question`: suggested answers.",
        "seconds": "Of `sleep`: how long.",
        "signal": "Of `signal`: the name of the signal.",
        "timeout_s": "Of `signal` and `child`: seconds after which the step fails with the type `timeout`.",
        "agent": "Of `child`: the name of the agent whose run is started.",
        "prompt": "Of `child`: the first message of that run.",
    },
    "FinishStep": {
        "op": "Store the value of a started step.",
        "key": "The key of the step.",
        "value": "Any JSON value; with a `codec`, a string.",
        "codec": "The name of the codec of a sealed value, which only the process can read. Empty: the value is JSON.",
        "pieces": "Instead of `value`: the number of pieces that were sent before.",
        "sha256": "Of a value in pieces: the digest of the joined pieces in UTF-8, in hexadecimal.",
        "shown": "What pages show instead of the value.",
        "duration_ms": "How long the step took.",
        "answer": "Of the kind `model`, where it is required: what the model answered.",
    },
    "SendPiece": {
        "op": "Store a piece of a large value.",
        "key": "The key of the step.",
        "index": "Number of the piece, from 0.",
        "data": "A part of the JSON text of the value, or of the text of a sealed one. At most 1 MiB.",
    },
    "FailStep": {
        "op": "Store that an attempt failed.",
        "key": "The key of the step.",
        "call_id": "Of a model's call that was not started, and is not executed any more: as for a start.",
        "error": "The error.",
        "final": "Whether the error is the outcome of the step. Otherwise the process tries again.",
        "retry_in_s": "Seconds until the next attempt, for people.",
        "duration_ms": "How long the attempt took.",
    },
    "AddText": {
        "op": "Show a piece of text that a started step streams. It is not part of the journal.",
        "key": "The key of the step.",
        "text": "The text.",
    },
    "LogEvent": {
        "op": "Append an event of your own type to the log of the run.",
        "type": "Begins with `x.`.",
        "payload": "Any JSON object.",
    },
    "ReceiveMessages": {
        "op": "Take the pending messages of people into the conversation. The value of the step is the list of texts.",
        "key": "The key of the step.",
        "may_release": "False: the process works on steps of the run, so a pending stop or pause does not release it.",
    },
    "PutValues": {
        "op": "Store values of a graph, without a step.",
        "values": "The values.",
    },
    "GraphValueBody": {
        "kind": "What the value is: a checkpoint, the value of a channel, or a pending write.",
        "namespace": "The sub-graph; empty for the graph itself.",
        "checkpoint": "ID of the checkpoint that it is or belongs to; empty for a channel. Later ones have larger IDs.",
        "key": "Of a channel: its name and version. Of a write: its task and number.",
        "index": "Number of the piece, from 0, of a text that is too large for one request.",
        "facts": "Of a checkpoint: its `parent`, `metadata` and `channels`, which are the keys of its channel values,"
        " and `deltas`, the channels whose values depend on its ancestors. Of a write: anything.",
        "text": "The value as ASCII text, of at most 1 MiB, such as Base64.",
        "keeps": "Whether an existing value stays as it is. Otherwise it is replaced.",
    },
    "ThreadsBody": {
        "ops": "Operations: `put`, `delete`, `copy`, `prune` and `delete_runs`. Carried out in order and in one"
        " transaction."
    },
    "PutInThread": {
        "op": "Store values of a thread.",
        "thread": "Name of the thread. With the ID of a run, the run is forked, and the fork gets the values.",
        "values": "The values.",
        "parent": "Of a run: the checkpoint at which it is forked.",
    },
    "DeleteThread": {"op": "Delete a thread.", "thread": "Name of the thread."},
    "CopyThread": {
        "op": "Copy all values of a thread.",
        "thread": "Name of the thread, or the ID of a run.",
        "to": "Name of the thread that gets them in place of its own.",
    },
    "PruneThread": {
        "op": "Delete everything but the newest checkpoint of each sub-graph.",
        "thread": "Name of the thread.",
    },
    "DeleteCheckpoints": {
        "op": "Delete checkpoints of all threads.",
        "run_ids": "Values of `run_id` in the metadata of the checkpoints.",
    },
    "StepError": {
        "type": "A short name, such as the class of the exception.",
        "message": "The message.",
        "details": "For people, such as a traceback.",
    },
    "ModelAnswer": {
        "text": "The text of the answer.",
        "thinking": "The reasoning, if the model gives it.",
        "calls": "The tool calls that the model requests. Execute each as a step with the key `call:` and its ID.",
        "model": "The model that answered.",
        "provider": "The name of its vendor, such as `anthropic`. Prices are looked up by it and the model.",
        "usage": "The tokens of the call.",
        "cost_usd": "The cost, if the provider reports it. By default, it is computed from the prices.",
        "finish_reason": "Why the model ended.",
        "tier": "The service tier, if the price depends on it.",
    },
    "AnsweredCall": {
        "id": "ID of the call, unique within the answer.",
        "name": "Name of the tool.",
        "arguments": "Its arguments: an object, or the text of one.",
        "effect": "Whether the call may be repeated after the process died in it. `once`: a person decides.",
        "needs_approval": "Whether a person has to approve the call, unless a rule decides.",
    },
    "Usage": {
        "input_tokens": "All tokens that were sent, with those of the cache.",
        "output_tokens": "All tokens that were received, with those of reasoning.",
        "cache_read_tokens": "Of these, read from the cache.",
        "cache_write_tokens": "Of these, written to the cache.",
        "cache_write_1h_tokens": "Of those written to the cache, written for one hour.",
        "reasoning_tokens": "Of the output, reasoning.",
    },
    "ReleaseBody": {
        "epoch": "The epoch of the claim.",
        "to": "`completed`, `failed`, `queued` to hand the run back, or `paused` and `stopped` for a pending command."
        " `paused` with an error pauses the run because of it.",
        "result": "Of `completed`: a text, or any JSON value, which is stored as indented text.",
        "summary": "Of `completed`: what lists show. By default, the first paragraph of the result.",
        "structured_output": "Of `completed`: the result as a JSON value. Checked if the agent has `output_schema`.",
        "error": "Of `failed` and `paused`: the error.",
        "reason": "Of `queued`: why, such as `worker_ending`.",
        "ignores_messages": "Of `completed`: false refuses it with 409 `messages_pending` while messages are pending.",
    },
}
BODIES["HeartbeatBody"] |= BODIES["ClaimBody"]
