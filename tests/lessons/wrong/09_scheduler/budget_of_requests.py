"""The budget counts requests, not tokens.

Words: counted in tokens
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        if budget <= 0:
            return 0
        super()._add_rows(step, request, 10**9)
        return 1
