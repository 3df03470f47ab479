"""_add_rows returns the budget that is left.

Words: returns how many it added
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        return budget - super()._add_rows(step, request, budget)
