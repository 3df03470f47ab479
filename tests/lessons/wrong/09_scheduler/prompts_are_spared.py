"""Whoever is still computing its prompt is not preempted where another could be.

Words: age decides: what it has computed of its prompt
"""

from minipaged.engine.scheduler import Scheduler as Right
from minipaged.engine.scheduler import _is_prefill


class Scheduler(Right):
    def _make_room(self, step):
        decoding = [request for request in self.running if not _is_prefill(request)]
        if decoding:
            self.running.remove(decoding[-1])
            self.running.append(decoding[-1])
        super()._make_room(step)
