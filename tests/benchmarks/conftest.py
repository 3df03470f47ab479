"""The package `benchmarks` as `minipaged bench` loads it, and the tiny models of the engine's tests."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from minipaged.cli.bench import load_benchmarks

ROOT = Path(__file__).parents[2]
load_benchmarks()
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))  # as where gpu_check.py runs

spec = spec_from_file_location("engine_conftest", ROOT / "tests" / "engine" / "conftest.py")
assert spec is not None and spec.loader is not None
engine_conftest = module_from_spec(spec)
spec.loader.exec_module(engine_conftest)
hf_greedy = engine_conftest.hf_greedy
the_pool_is_whole = engine_conftest.the_pool_is_whole
tiny_chat_model = engine_conftest.tiny_chat_model
tiny_model = engine_conftest.tiny_model
