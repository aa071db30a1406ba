"""The formats of vendors' tokens, as data: the rules of redaction, their test samples and a page of the reference are
generated from it."""
