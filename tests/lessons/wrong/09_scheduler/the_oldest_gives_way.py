"""The oldest request is preempted, since it holds the most.

Words: oldest must never starve
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        if len(self.running) == 1:
            self._free(self.running[0])
            step.outgrown.append(self.running.pop())
            return
        request = self.running.pop(0)
        self._free(request)
        self.waiting.appendleft(request)
        request.num_preemptions += 1
        step.preempted.append(request)
