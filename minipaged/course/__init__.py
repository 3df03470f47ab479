"""The machinery behind `pytest lessons/`: the manifest, exercises made from their answer keys, the report."""
