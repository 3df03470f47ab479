"""Only those admitted in this step are counted: each step fills all places anew.

Words: those who run already count
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _resume_and_admit(self, step, budget):
        num_running = 0
        while self.waiting and budget > 0:
            request = self.waiting[0]
            num_running += request.num_sequences
            if num_running > self.max_num_running:
                return
            try:
                self._admit(step, request)
            except OutOfBlocksError:
                if not self.running and not step.outgrown:
                    self.finish(request)
                    step.outgrown.append(request)
                return
            budget -= self._add_rows(step, request, budget)
