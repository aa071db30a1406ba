"""Remote runs in the states that pages show differently from other runs."""

from __future__ import annotations

import hashlib

from agentops.accounts.models import Project
from runs.lifecycle import transitions
from runs.models import AgentRun
from tests.support.remote import Program

ANSWER = {
    "text": "The invoice is for 1,200 EUR. I will charge it.",
    "calls": [{"id": "toolu_1", "name": "charge", "arguments": {"cents": 120_000}}],
    "model": "claude-sonnet-4-5",
    "provider": "anthropic",
    "usage": {"input_tokens": 900, "output_tokens": 60},
    "cost_usd": "0.0042",
    "finish_reason": "tool_call",
}
RESULT = {"text": "Done: the invoice is paid.", "model": "claude-sonnet-4-5", "usage": {"input_tokens": 990}}


def make_remote_runs(project: Project) -> dict[str, AgentRun]:
    """Create a remote run for each state, by its name. The process of `remote-running` is alive."""
    makers = {
        "remote-completed": complete,
        "remote-sleeping": sleep,
        "remote-signal": wait_for_signal,
        "remote-queued": queue,
        "remote-unknown": lose_process,
        "remote-error": fail,
        "remote-running": execute,
    }
    for name, make in makers.items():
        program = Program(project, agent=name, name=f"worker-{name}.example.org:4711:0")
        program.start_run(f"Process the invoices of October ({name})")
        make(program)
    runs = AgentRun.objects.filter(agent__slug__in=makers)
    return {run.agent.slug: run for run in runs.select_related("agent") if run.agent is not None}


def complete(program: Program) -> None:
    """Execute a function with a step of each kind that ends by itself."""
    program.claim()
    program.op("receive", "0")
    program.start("1", "read_invoices", effect="read", input={"folder": "/invoices/2026-10", "limit": 20})
    program.op("text", "1", text="reading a.pdf\nreading b.pdf\n")
    program.op("finish", "1", value={"invoices": ["a.pdf", "b.pdf"], "cents": 120_000}, duration_ms=1250)
    program.start("2", "ask", kind="model", model="claude-sonnet-4-5")
    program.op("text", "2", text=str(ANSWER["text"]))
    program.op("finish", "2", value="answered", answer=ANSWER, duration_ms=2300)
    program.start("call:toolu_1", "charge", kind="tool", input={"cents": 120_000})
    failure = {"type": "TimeoutError", "message": "the bank did not answer in time"}
    program.op("fail", "call:toolu_1", error=failure, final=False, retry_in_s=2)
    program.op("finish", "call:toolu_1", value="charged", duration_ms=800)
    program.start("3", "ask", kind="model", model="claude-sonnet-4-5")
    program.op("finish", "3", value="answered", answer=RESULT, duration_ms=1900)
    program.start("4", "fetch_key", effect="read")
    program.op("finish", "4", value="gAAAAABnZm9v", codec="fernet")
    program.start("5", "render_report", effect="idempotent")
    pieces = ['"' + "x" * 1000, "y" * 1000 + '"']
    for index, piece in enumerate(pieces):
        program.op("piece", "5", index=index, data=piece)
    program.op("finish", "5", pieces=2, sha256=hashlib.sha256("".join(pieces).encode()).hexdigest())
    program.start("6", "notify", effect="once", input="finance@example.org")
    program.op("fail", "6", error={"type": "SMTPError", "message": "mailbox full"}, final=True)
    program.release("completed", result={"paid": 2}, summary="Two invoices are paid.")


def sleep(program: Program) -> None:
    """Let the run sleep for a day."""
    program.claim()
    program.step("1", "plan", {"days": 1})
    program.start("2", "sleep", kind="sleep", seconds=86_400)


def wait_for_signal(program: Program) -> None:
    """Let the run wait for a signal, at most for an hour."""
    program.claim()
    program.start("1", "payment", kind="signal", signal="payment.received", timeout_s=3_600)


def queue(program: Program) -> None:
    """Leave the run in the queue, where no process offers its agent."""


def lose_process(program: Program) -> None:
    """Let the process die in a step that must not be repeated."""
    program.claim()
    program.start("1", "charge", effect="once", input={"cents": 500})
    transitions.expire_leases(program.run.lease_owner or "")
    program.claim()
    program.start("1", "charge", effect="once", input={"cents": 500})


def fail(program: Program) -> None:
    """Let the function raise an error."""
    program.claim()
    program.step("1", "plan", {"days": 1})
    error = {"type": "ValueError", "message": "invoice 17 has no amount", "details": "Traceback …"}
    program.release("failed", error=error)


def execute(program: Program) -> None:
    """Leave the run with a living process, in a step."""
    program.claim()
    program.step("1", "plan", {"days": 1})
    program.start("2", "charge", effect="once", input={"cents": 500})
    program.op("text", "2", text="connecting to the bank\n")
    program.heartbeat()
