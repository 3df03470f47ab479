"""When room was made, the next request is looked at, and this one has no slot.

Words: no slot was reserved
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.reference.allocator import OutOfBlocksError


class Scheduler(Right):
    def _reserve_slots(self, step):
        for request in list(self.running):
            if request not in self.running:
                continue
            try:
                self._append_slots(step, request)
            except OutOfBlocksError:
                self._make_room(step)
