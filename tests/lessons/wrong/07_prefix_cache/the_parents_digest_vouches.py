"""The block's own tokens and the digest of the link before it are compared.

Words: after 1 1 1 1, compare the whole chain
"""

EDITS = {
    "if not known.same_tokens(link):": (
        "if known.content != link.content or known.parent.digest != link.parent.digest:"
    ),
}
