"""num_preemptions is set to 1.

Words: once for each time
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        request = self.running[-1]
        super()._make_room(step)
        request.num_preemptions = min(request.num_preemptions, 1)
