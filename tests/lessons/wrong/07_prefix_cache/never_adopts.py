"""The block was found, which is all that was asked.

Words: links of its own, chain.adopt(index, known)
"""

EDITS = {
    "        chain.adopt(index, known)\n": "",
}
