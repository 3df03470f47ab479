"""Whoever finds no block for its token gives way itself.

Words: age decides
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _reserve_slots(self, step):
        for request in list(self.running):
            try:
                self._append_slots(step, request)
            except OutOfBlocksError:
                self._free(request)
                self.running.remove(request)
                if not self.running:
                    step.outgrown.append(request)
                    continue
                self.waiting.appendleft(request)
                request.num_preemptions += 1
                step.preempted.append(request)
