"""One preemption a step is taken for enough; who still has no slot waits for the next step.

Words: try again until the slots are there
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _reserve_slots(self, step):
        index = 0
        while index < len(self.running):
            try:
                self._append_slots(step, self.running[index])
            except OutOfBlocksError:
                if step.preempted:
                    return
                self._make_room(step)
                continue
            index += 1
