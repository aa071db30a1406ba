"""Tools of a shop. Each public tool of this module can be named in the definition of an agent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentops.tools import ToolContext, ToolFailed, tool

ORDERS = {"A-17": {"status": "shipped", "cents": 2500}, "A-18": {"status": "packed", "cents": 900}}
#: Refunds by idempotency key, where a real shop would have a table.
REFUNDS: dict[str, int] = {}


@tool(effect="read", timeout_s=5)
def order_status(order: Annotated[str, Field(pattern=r"^A-[0-9]+$")]) -> dict[str, object]:
    """Return the status and the total of an order.

    Args:
        order: The number of the order, such as A-17.
    """
    if order not in ORDERS:
        raise ToolFailed("unknown_order", f"There is no order {order}.")
    return ORDERS[order]


@tool(effect="idempotent", timeout_s=10, needs_approval=True)
def refund(ctx: ToolContext, order: str, cents: Annotated[int, Field(gt=0)]) -> str:
    """Refund a part of an order.

    Args:
        order: The number of the order.
        cents: The amount.
    """
    ctx.write(f"Refunding {cents} cents of {order}\n")
    # The same call has the same key after a crash, so it is refunded once.
    REFUNDS.setdefault(ctx.idempotency_key, cents)
    return f"Refunded {cents} cents of {order}."
