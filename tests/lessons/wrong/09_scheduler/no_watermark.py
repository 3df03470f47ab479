"""An admission may take the last block.

Words: 1 % of the pool
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    @property
    def num_spare_blocks(self):
        return 0
