"""schedule fills the step and returns nothing.

Words: returns the step
"""

from minipaged.engine.scheduler import Schedule, _is_prefill
from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def schedule(self, step=None):
        step = Schedule() if step is None else step
        self._reserve_slots(step)
        budget = self.max_num_batched_tokens
        for request in sorted(self.running, key=_is_prefill):
            budget -= self._add_rows(step, request, budget)
        if not step.preempted:
            self._resume_and_admit(step, budget)
        step.rows.sort(key=lambda row: row.stop - row.start > 1)
        return None
