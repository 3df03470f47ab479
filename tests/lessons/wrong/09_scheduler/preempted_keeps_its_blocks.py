"""A preempted request keeps its blocks.

Words: gives all of its blocks back
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        if len(self.running) == 1:
            self._free(self.running[0])
            step.outgrown.append(self.running.pop())
            return
        request = self.running.pop(-1)
        pass
        self.waiting.appendleft(request)
        request.num_preemptions += 1
        step.preempted.append(request)
