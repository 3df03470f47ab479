"""A request that is alone and out of blocks is preempted, again and again.

Words: nobody to give way to
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        request = self.running.pop()
        self._free(request)
        self.waiting.appendleft(request)
        request.num_preemptions += 1
        step.preempted.append(request)
