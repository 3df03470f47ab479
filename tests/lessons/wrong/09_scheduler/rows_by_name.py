"""Rows of one length are sorted by the names of their requests.

Words: the oldest stands first
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def schedule(self, step=None):
        step = super().schedule(step)
        step.rows.sort(key=lambda row: (row.stop - row.start > 1, row.request.request_id))
        return step
