"""This engine beside others on a CPU, each in an environment of its own; see bench.py."""
