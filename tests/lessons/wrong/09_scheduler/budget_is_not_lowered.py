"""Everyone gets the whole budget.

Words: over all requests
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        super()._add_rows(step, request, budget)
        return 0
