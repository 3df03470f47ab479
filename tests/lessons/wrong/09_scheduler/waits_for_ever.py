"""The head of the line that never fits blocks it for ever.

Words: it never will
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _resume_and_admit(self, step, budget):
        num_running = sum(request.num_sequences for request in self.running)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            num_running += request.num_sequences
            if num_running > self.max_num_running:
                return
            try:
                self._admit(step, request)
            except OutOfBlocksError:
                return
            budget -= self._add_rows(step, request, budget)
