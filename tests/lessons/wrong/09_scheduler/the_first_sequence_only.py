"""Rows are made for one sequence of a request.

Words: the second sequence gets what the first one leaves
"""

from minipaged.engine.scheduler import Row
from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    def _add_rows(self, step, request, budget):
        sequence = request.unfinished[0]
        num_tokens = min(sequence.num_uncomputed_tokens, budget)
        if num_tokens <= 0:
            return 0
        start = sequence.num_computed_tokens
        stop = start + num_tokens
        step.rows.append(Row(request, sequence, start, stop, stop == sequence.num_tokens))
        return num_tokens
