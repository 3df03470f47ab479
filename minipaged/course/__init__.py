"""The machinery behind `pytest lessons/`: the manifest, the exercises, the report."""
