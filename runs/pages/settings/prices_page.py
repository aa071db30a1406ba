"""The prices of a project with the published prices for comparison, and models of recent runs without a price."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import SHORT, add_refusal, see_other, sentence
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery
from runs.actions import project_changes
from runs.agents.prices import InvalidPrices, ModelPrice, prices_for, prices_of
from runs.pages.forms.fields import NUMBER, OneLineField, line
from runs.pages.page_parts import enter_project, project_context
from runs.providers.published_prices import PublishedPrice, published_price
from runs.queries.usage import MAX_NEWEST_RUNS, UsedModel, used_models
from timeline.display import clean

#: The buckets of tokens, with their labels.
BUCKETS = {
    "input": "Input",
    "cache_read": "Cache read",
    "cache_write": "Cache write",
    "cache_write_1h": "Cache write 1 h",
    "output": "Output",
    "reasoning": "Reasoning",
}


class PriceForm(forms.Form):
    """A price. Amounts are texts, to keep their digits."""

    model = OneLineField(
        "Model",
        "As agents state it, such as `openai-chat:gpt-5`, or as answers do. `*` matches any characters. A price for "
        "the same text, tier and size is replaced.",
        SHORT | {"maxlength": 200},
        required=True,
    )
    tier = OneLineField(
        "Tier",
        "Such as `fast`, `batch`, `flex` or `priority`. Empty: the standard tier.",
        SHORT | {"maxlength": 40},
    )
    above = OneLineField(
        "Above", "Only for calls that send more tokens than this. Empty: for all.", NUMBER | {"maxlength": 13}
    )

    def __init__(self, data: Any = None, **options: Any) -> None:
        super().__init__(data, auto_id="price-%s", **options)
        for name, label in BUCKETS.items():
            required = name in ("input", "output")
            self.fields[name] = OneLineField(label, attrs={"inputmode": "decimal"}, required=required)

    @property
    def call_fields(self) -> list[forms.BoundField]:
        """The fields of the calls that the price applies to, for the template."""
        return [self["tier"], self["above"]]

    @property
    def amounts(self) -> list[forms.BoundField]:
        """The fields of the buckets, for the template."""
        return [self[name] for name in BUCKETS]


@dataclass(frozen=True)
class PriceRow:
    """A price of the project, and the published price of the standard tier."""

    price: ModelPrice
    #: Tier and size of the calls that the price applies to; empty for all calls.
    of_calls: str
    #: The price of each bucket.
    own: list[str]
    #: The published price of each bucket; empty if it is unknown.
    published: list[str]
    #: The vendor and the model of the published price.
    published_of: str

    @property
    def name(self) -> str:
        """Return the model, and the calls if the price does not apply to all."""
        return f"{self.price.model}, {self.of_calls}" if self.of_calls else self.price.model

    @property
    def change_url(self) -> str:
        """Return the query of the page whose form has this price."""
        return f"?{urlencode({'model': self.price.model, 'tier': self.price.tier, 'above': self.price.above or ''})}"


@dataclass(frozen=True)
class UsedRow:
    """A model of recent runs."""

    model: UsedModel
    name: str
    #: The pattern of the project's price that currently applies; empty without one.
    pattern: str
    #: Whether the model has a published price.
    published: bool


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the prices. `model`, `tier` and `above` fill in the form with that price or the published price."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    model, tier, above = (line(request.GET.get(name, ""))[:200] for name in ("model", "tier", "above"))
    return _page(request, entry, PriceForm(initial=_initial(entry.project, model, tier, above) if model else {}))


@require_POST
def set_price(request: HttpRequest, project: str) -> HttpResponse:
    """Set the price of a pattern, replacing an earlier one, or show the form with errors and status 422."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    form = PriceForm(request.POST)
    if form.is_valid():
        try:
            price = {name: text for name, text in form.cleaned_data.items() if text}
            project_changes.set_price(entry.project, price, by=principal)
        except InvalidPrices as refusal:
            add_refusal(form, refusal, {"": "model"})
        else:
            messages.success(request, "Price saved. It counts for model calls from now on. Stored costs stay.")
            return see_other("runs:prices", entry.project.slug)
    return _page(request, entry, form, status=422)


@require_POST
def remove_price(request: HttpRequest, project: str) -> HttpResponse:
    """Remove the price of the pattern `model`, of the calls of `tier` that send more than `above` tokens."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    pattern = request.POST.get("model", "")
    if not pattern:
        raise InvalidQuery("send the model whose price is removed")
    try:
        tier, above = request.POST.get("tier", ""), request.POST.get("above", "") or "0"
        number = int(above) if above.isdecimal() else -1
        project_changes.remove_price(entry.project, pattern, tier=tier, above=number, by=principal)
    except InvalidPrices as refusal:
        # Another user removed it first, or it was a second click.
        messages.info(request, sentence(refusal))
    else:
        messages.success(request, "Price removed. Published prices count from now on.")
    return see_other("runs:prices", entry.project.slug)


def _page(request: HttpRequest, entry: EnteredProject, form: PriceForm, *, status: int = 200) -> HttpResponse:
    unreadable, prices = "", []
    try:
        prices = prices_of(entry.project.settings)
    except InvalidPrices as refusal:
        unreadable = str(refusal)
    used = [_used(each, prices) for each in used_models(entry.project.pk)]
    context = {
        **project_context(entry, "settings"),
        "rows": [_row(price) for price in prices],
        "buckets": list(BUCKETS.values()),
        "unreadable": unreadable,
        "used": used,
        "max_runs": MAX_NEWEST_RUNS,
        "form": form,
    }
    return render(request, "runs/settings/prices.html", context, status=status)


def _initial(project: Project, model: str, tier: str, above: str) -> dict[str, str]:
    """Return the texts of the form for a model: its price in the project, or the published one."""
    key = (model, tier, int(above) if above.isdecimal() else 0)
    try:
        price = next((each for each in prices_of(project.settings) if each.key == key), None)
    except InvalidPrices:
        price = None
    source: Any = price or published_price(model)
    return {
        "model": model,
        "tier": tier,
        "above": above,
        **{name: _amount(getattr(source, name, None)) for name in BUCKETS},
    }


def _row(price: ModelPrice) -> PriceRow:
    published = None if "*" in price.model else published_price(price.model)
    return PriceRow(
        price,
        of_calls=", ".join(filter(None, [price.tier, f"above {price.above:,} tokens" if price.above else ""])),
        own=[_amount(getattr(price, name)) for name in BUCKETS],
        published=[_amount(getattr(published, name, None)) for name in BUCKETS],
        published_of=_published_name(published),
    )


def _used(used: UsedModel, prices: list[ModelPrice]) -> UsedRow:
    own = prices_for(prices, used.name)
    return UsedRow(used, clean(used.name), own[0].model if own else "", published_price(used.name) is not None)


def _published_name(published: PublishedPrice | None) -> str:
    if published is None:
        return ""
    return f"{published.vendor}: {published.model}{', more for long requests' if published.is_tiered else ''}"


def _amount(amount: Decimal | None) -> str:
    """Return an amount without trailing zeros and without an exponent; empty without one."""
    return "" if amount is None else f"{amount.normalize():f}"
