"""All formats of vendors' tokens, and where they are known from.

Only facts are taken from there: prefixes, alphabets and lengths. No code and no sentence of these projects is here.
"""

from __future__ import annotations

from timeline.redaction.vendor_formats import business_services, cloud_platforms, code_platforms, model_vendors
from timeline.redaction.vendor_formats.token_grammar import VendorFormat

#: Letter → project, its licence, and the commit that was read.
SOURCES = {
    "g": ("gitleaks/gitleaks", "MIT", "b58d3f102cf3"),
    "b": ("betterleaks/betterleaks", "MIT", "6381fa45ae94"),
    "k": ("mongodb/kingfisher", "Apache-2.0", "ee7c0db3ef87"),
    "n": ("praetorian-inc/noseyparker", "Apache-2.0", "2e6e7f36ce36"),
    "d": ("Yelp/detect-secrets", "Apache-2.0", "5e141933554a"),
    "t": ("trufflesecurity/trufflehog", "AGPL-3.0, of which nothing but facts is used", "3ab759fef4bb"),
    "v": ("none of these; from the vendor's tokens", "", ""),
}
FORMATS = tuple(
    VendorFormat(*row)
    for module in (model_vendors, code_platforms, cloud_platforms, business_services)
    for row in module.ROWS
)
