"""`agentops price`: the prices that a project sets for models; see runs.agents.prices."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from runs.actions import project_changes
from runs.agents.prices import ModelPrice, prices_of

#: The kinds of tokens that have prices.
BUCKETS = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning")


class Command(AgentopsCommand):
    help = (
        "Show or change the prices of a project for models, in US dollars per million tokens. They apply to later"
        " model calls, instead of published prices. Stored costs stay unchanged."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_project(parser, takes_word=True)
        parser.add_argument("model", metavar="MODEL", nargs="?", help='model to set, with "*" for any characters')
        parser.add_argument("--input", metavar="X", help="tokens sent, without those in the prompt cache")
        parser.add_argument("--cache-read", metavar="X", help="tokens read from the prompt cache (default: --input)")
        parser.add_argument("--cache-write", metavar="X", help="tokens written to the prompt cache (default: --input)")
        parser.add_argument(
            "--cache-write-1h", metavar="X", help="tokens written to it for one hour (default: --cache-write)"
        )
        parser.add_argument("--output", metavar="X", help="tokens received")
        parser.add_argument("--reasoning", metavar="X", help="reasoning tokens (default: --output)")
        parser.add_argument(
            "--tier", metavar="TIER", default="", help="only calls of this tier, such as fast, batch, flex or priority"
        )
        parser.add_argument("--above", metavar="N", default="0", help="only calls that send more than N tokens")
        parser.add_argument("--remove", action="store_true", help="remove the price of MODEL")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        project = chosen_project(options, Action.MANAGE)
        model, amounts = options["model"], {name: options[name] for name in BUCKETS if options[name] is not None}
        if (amounts or options["remove"]) and not model:
            raise CommandError("Name a model to set or remove its price.", returncode=EXIT_USAGE)
        if amounts and options["remove"]:
            raise CommandError("--remove does not take prices.", returncode=EXIT_USAGE)
        if amounts:
            price = {"model": model, "tier": options["tier"], "above": options["above"], **amounts}
            prices = project_changes.set_price(project, price, by=operator())
        elif options["remove"]:
            above = int(options["above"]) if options["above"].isdecimal() else -1
            prices = project_changes.remove_price(project, model, tier=options["tier"], above=above, by=operator())
        else:
            prices = [price for price in prices_of(project.settings) if model in (None, price.model)]
        if options["json"]:
            self.write_json([price.model_dump(mode="json", exclude_defaults=True) for price in prices])
        else:
            self.write_table(["model", "tier", "above", *BUCKETS], [_row(price) for price in prices])


def _row(price: ModelPrice) -> tuple[str, ...]:
    amounts = [getattr(price, name) for name in BUCKETS]
    cells = ["" if amount is None else f"{amount:f}" for amount in amounts]
    return price.model, price.tier, str(price.above or ""), *cells
