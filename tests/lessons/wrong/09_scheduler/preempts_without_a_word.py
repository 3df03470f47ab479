"""Who gives way is not listed in the step.

Words: listed in step.preempted
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        super()._make_room(step)
        step.preempted.clear()
