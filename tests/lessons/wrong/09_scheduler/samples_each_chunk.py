"""Every chunk of a prompt samples a token.

Words: only where the last known token is computed
"""

from minipaged.engine.scheduler import Row
from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        used = 0
        for sequence in request.unfinished:
            num_tokens = min(sequence.num_uncomputed_tokens, budget - used)
            if num_tokens > 0:
                start = sequence.num_computed_tokens
                stop = start + num_tokens
                step.rows.append(Row(request, sequence, start, stop, True))
                used += num_tokens
        return used
