"""The invariants of messages: M1 to M8 and W6."""

from __future__ import annotations

from runs.upkeep.invariants.invariant import Invariant

MESSAGE_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("M1", "the messages of a run have the positions 1..n, rolled-back ones included: none was deleted", """
        SELECT run_id FROM messages GROUP BY run_id HAVING MIN(position) <> 1 OR MAX(position) <> COUNT(*)"""),
    Invariant("M2", "a step has at most one active model response", """
        SELECT run_id, step_number FROM messages WHERE role = 'assistant' AND rolled_back_at IS NULL
        GROUP BY run_id, step_number HAVING COUNT(*) > 1"""),
    Invariant("M3", "a model call started only after every earlier tool call had its result", """
        SELECT a.run_id, a.id FROM messages a JOIN native r ON r.id = a.run_id
        JOIN open_calls o ON o.run_id = a.run_id AND o.step < a.step_number
        WHERE a.role = 'assistant' AND a.rolled_back_at IS NULL"""),
    Invariant("M4", "an ended tool call of an active message has an active result in the same run and step", """
        SELECT t.run_id, t.id FROM calls t
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN agent_run_messages x ON x.id = t.result_message_id AND x.run_id = t.run_id
            AND x.step_number = t.step_number AND x.role = 'tool_result' AND x.rolled_back_at IS NULL
        WHERE x.id IS NULL AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)"""),
    Invariant("M5", "an active tool result belongs to exactly one tool call", """
        SELECT m.run_id, m.id FROM messages m
        LEFT JOIN (SELECT result_message_id, COUNT(*) AS n FROM calls WHERE result_message_id IS NOT NULL
            GROUP BY result_message_id) t ON t.result_message_id = m.id
        WHERE m.role = 'tool_result' AND m.rolled_back_at IS NULL AND COALESCE(t.n, 0) <> 1"""),
    Invariant("M6", "a run with rolled-back messages has a run.rolled_back event", """
        SELECT m.run_id, m.id FROM messages m WHERE m.rolled_back_at IS NOT NULL
            AND m.run_id NOT IN (SELECT run_id FROM events WHERE type = 'run.rolled_back')"""),
    Invariant("M7", "a message whose tool may have had an effect is never rolled back", """
        SELECT t.run_id, t.message_id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE m.rolled_back_at IS NOT NULL AND t.starts > 0"""),
    Invariant("M8", "the tool calls in an active response match the rows of its tool calls"),
    Invariant("W6", "the content of a message matches its stored SHA-256 digest"),
)  # fmt: skip
