"""Where the head of the line doesn't fit, the next one is tried.

Words: first come, first served
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _resume_and_admit(self, step, budget):
        num_running = sum(request.num_sequences for request in self.running)
        for request in list(self.waiting):
            if budget <= 0 or num_running + request.num_sequences > self.max_num_running:
                return
            self.waiting.remove(request)
            self.waiting.appendleft(request)
            try:
                self._admit(step, request)
            except OutOfBlocksError:
                self.waiting.remove(request)
                self.waiting.append(request)
                if not self.running and not step.outgrown:
                    self.finish(request)
                    step.outgrown.append(request)
                continue
            num_running += request.num_sequences
            budget -= self._add_rows(step, request, budget)
