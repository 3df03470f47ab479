"""Each concept, reference and twin, timed by pytest-benchmark: `make bench-kernels`."""
