"""A preempted request waits at the end, behind newcomers.

Words: front of `waiting`
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        if len(self.running) == 1:
            self._free(self.running[0])
            step.outgrown.append(self.running.pop())
            return
        request = self.running.pop(-1)
        self._free(request)
        self.waiting.append(request)
        request.num_preemptions += 1
        step.preempted.append(request)
