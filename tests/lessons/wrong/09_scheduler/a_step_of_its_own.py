"""schedule makes a step of its own, whatever it is handed.

Words: the caller looks into the step
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def schedule(self, step=None):
        return super().schedule()
