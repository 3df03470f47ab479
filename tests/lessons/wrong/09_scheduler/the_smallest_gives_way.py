"""The request with the fewest tokens is preempted, since it is the cheapest to compute again.

Words: age decides
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _make_room(self, step):
        if len(self.running) == 1:
            self._free(self.running[0])
            step.outgrown.append(self.running.pop())
            return
        request = min(reversed(self.running), key=lambda each: each.sequences[0].num_tokens)
        self.running.remove(request)
        self._free(request)
        self.waiting.appendleft(request)
        request.num_preemptions += 1
        step.preempted.append(request)
