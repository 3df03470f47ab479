"""The lessons: one folder each, graded by `pytest lessons/`."""
