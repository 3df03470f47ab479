"""The watermark is rounded down: none in a small pool.

Words: rounded up
"""

from minipaged.engine.scheduler import Scheduler as Right


class Scheduler(Right):
    @property
    def num_spare_blocks(self):
        return self.blocks.num_blocks // 100 if self.running else 0
