"""The watermark is kept though nobody runs.

Words: nobody runs
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    @property
    def num_spare_blocks(self):
        return -(-self.blocks.num_blocks // 100)
