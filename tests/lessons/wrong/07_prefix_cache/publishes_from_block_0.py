"""All full blocks up to stop are published.

Words: publish makes blocks start to stop - 1 findable
"""

EDITS = {
    "for index in range(start, stop):": "for index in range(stop if start < stop else 0):",
}
