"""Every sequence of a request may use the whole budget of the request.

Words: what the first one leaves of the budget
"""

from minipaged.engine.scheduler import Row
from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        used = 0
        for sequence in request.unfinished:
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            if num_tokens > 0:
                start = sequence.num_computed_tokens
                stop = start + num_tokens
                step.rows.append(Row(request, sequence, start, stop, stop == sequence.num_tokens))
                used += num_tokens
        return used
