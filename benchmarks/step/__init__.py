"""A decode step beside the machine's limits; see bench.py."""
