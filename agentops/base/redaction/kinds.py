"""The built-in kinds of secrets, which need no rule of a project."""

from __future__ import annotations

from agentops.base.redaction import secret_commands, secret_names, secret_shapes, secret_statements, secret_urls
from agentops.base.redaction.registered_secrets import SECRET

#: Kinds recognized by the text before the value: a name, a header, a command, a statement or an address.
BY_PLACE = frozenset(
    {*secret_names.KINDS, *secret_commands.KINDS, *secret_statements.KINDS, *secret_urls.KINDS}
    | {"authorization", "basic", "bearer", "url_password", SECRET}
)
BUILT_IN_KINDS = BY_PLACE | secret_shapes.KINDS
#: Kinds that no project may disable: an API key of this site gives access to it.
ALWAYS_MASKED = frozenset({"agentops_key"})
