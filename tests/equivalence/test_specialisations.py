"""No kernel is compiled anew while an engine serves: batches of any size share one compiled kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("count_specialisations.py")


def test_each_kernel_is_compiled_once_for_batches_of_any_size() -> None:
    switches = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM")
    environment = {key: value for key, value in os.environ.items() if key not in switches}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts == dict.fromkeys(counts, 1)
    assert counts.keys() == {
        "_decode_kernel",
        "_merge_kernel",
        "_plan_kernel",
        "_prefill_kernel",
        "_slot_mapping_kernel",
        "_take_kernel",
        "_write_kv_kernel",
    }
