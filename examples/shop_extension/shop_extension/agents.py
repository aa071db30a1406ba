"""An agent of a shop: plain Python, whose steps the site stores."""

from __future__ import annotations

from agentops.durable import DurableRun, durable
from shop_extension.tools import ORDERS


def read_totals() -> dict[str, int]:
    """Return the total of each order in cents."""
    return {number: int(str(order["cents"])) for number, order in ORDERS.items()}


def send(cents: int) -> str:
    """Stand in for a request to another system."""
    return f"Reported {cents} cents."


@durable("report", description="Reports the total of all orders, after an approval.")
async def report(run: DurableRun, prompt: str) -> str:
    totals = await run.step("read totals", read_totals, effect="read")
    cents = sum(totals.values())
    if not await run.approve("send", {"cents": cents}):
        return "Not reported."
    return str(await run.step("send", send, cents))
