"""This engine against Hugging Face `generate`: bench.py runs the systems, each in a process of its own."""
