"""docs/reference/secret-kinds.md: the kinds of secrets that are masked, from the table of formats."""

from __future__ import annotations

import re

from agentops.base.redaction.kinds import BUILT_IN_KINDS
from agentops.base.redaction.token_grammar import VendorFormat
from agentops.base.redaction.vendor_formats import FORMATS, GROUPS, SOURCES
from agentops.reference.markdown import code, page, table

INTRODUCTION = """\
Secrets of these kinds are masked as `[REDACTED:KIND:DIGEST]` without any rule; see
[Secrets](../guides/security.md#secrets). An exception under *Settings*, *Redaction* stops masking a kind in a project,
except `agentops_key`."""

PLACES = {
    "agentops_key": "An API key of agentops, except its prefix.",
    "agentops_link": "A link of this site that lets in whoever has it: an invitation, an approval, a shared report.",
    "api_key": "A key that begins with `sk-`, as those of OpenAI, DeepSeek, Moonshot and others.",
    "authorization": "What follows `Authorization`.",
    "azure_client_secret": "A client secret of Microsoft Entra, from its `Q~` on.",
    "basic": "The credentials of `Basic`; `auth` in Docker's settings and `_auth` in those of npm.",
    "bearer": "The token of `Bearer`.",
    "cookie": "The values of a cookie header, and of `curl -b`.",
    "discord_webhook": "The token in the address of a webhook of Discord.",
    "ifttt_key": "The key in an address of IFTTT.",
    "jwt": "A JSON Web Token.",
    "key": (
        "A random value behind a name that ends in `api_key`, `access_key`, `secret_key` and the like; "
        "`client-key-data` of a kubeconfig."
    ),
    "password": (
        "A value behind a name such as `password`, `DB_PASS` or `--password`; in SQL (`IDENTIFIED BY`, `PASSWORD`), in "
        "`.netrc`, and in commands such as `curl -u`, `mysql -p`, `sshpass -p`, `docker login -p`, `htpasswd -b`."
    ),
    "private_key": "A private key in PEM, also if it is cut.",
    "secret": "A random value behind a name that ends in `secret`; a registered secret.",
    "slack_webhook": "The path of a webhook of Slack.",
    "teams_webhook": "The path of a webhook of Microsoft Teams.",
    "telegram_token": "The token of a bot of Telegram, behind its number.",
    "terraform_token": "A token of HCP Terraform, from its `.atlasv1.` on.",
    "token": "A random value behind a name that ends in `token`.",
    "url_password": "The password in a URL.",
    "url_signature": "The signature in a signed URL of Azure (`sig`), Amazon or Google (`X-…-Signature`).",
    "zapier_webhook": "The path of a webhook of Zapier.",
}
UNKNOWN = """\
Keys without a prefix of their own cannot be told from hashes and IDs: those of Mistral, Cohere, Deepgram, AssemblyAI,
Azure OpenAI, Datadog, Discord's bots and others, and secret access keys of AWS. They are masked behind a name,
such as `MISTRAL_API_KEY=` or `"token":`, or by a [rule](../guides/security.md#redaction-rules) of the project."""
FORMATS_INTRODUCTION = """\
`alnum*52` are 52 letters and digits, `word` contains `-` and `_` too, `hex` are lower-case hexadecimal digits, `lower`
and `upper` are digits and letters of one case. With `*`, any 16 characters after the prefix count, unless they are
words. With `=`, the length has to be exact. The last column names the projects that know a format. Its prefix,
alphabet and length are from there:"""


def secret_kinds_page() -> str:
    described = PLACES.keys() | {form.kind for form in FORMATS}
    if described != BUILT_IN_KINDS:
        raise LookupError(f"kinds without a description, or descriptions without a kind: {described ^ BUILT_IN_KINDS}")
    rows = [[code(kind), meaning] for kind, meaning in PLACES.items()]
    groups = (_group(title, rows) for title, rows in GROUPS.items())
    return page(
        "Kinds of secrets",
        INTRODUCTION,
        f"## By their place or shape\n\n{table(['Kind', 'What is masked'], rows)}",
        UNKNOWN,
        f"## By their prefix\n\n{FORMATS_INTRODUCTION}",
        "\n".join(_source(letter, *source) for letter, source in SOURCES.items()),
        *groups,
    )


def _group(title: str, rows: tuple[tuple[str, str, str, str, str], ...]) -> str:
    cells = [_cells(VendorFormat(*row)) for row in rows]
    return f"### {title}\n\n{table(['Whose', 'Prefix', 'Followed by', 'Kind', 'Known from'], cells)}"


def _cells(form: VendorFormat) -> list[str]:
    return [form.vendor, code(form.prefix), code(re.sub(r"\s+", " ", form.body)), code(form.kind), form.sources]


def _source(letter: str, name: str, licence: str, commit: str) -> str:
    repository = f"[{name}](https://github.com/{name}) at {commit}" if commit else name
    return f"- {letter}: {repository}{f' ({licence})' if licence else ''}"
