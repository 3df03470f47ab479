"""Let the tests of this folder say `import problems`, and poison the lanes that no load defines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from undefined_lanes import undefined_lanes_hold_poison  # noqa: F401
