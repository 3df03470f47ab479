"""Those preempted in one step wait in the order in which they gave way.

Words: the line stays in order of arrival
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        super()._make_room(step)
        if len(step.preempted) > 1 and self.waiting:
            request = self.waiting.popleft()
            self.waiting.insert(len(step.preempted) - 1, request)
