"""Find a model, load it, and refuse what would run wrongly."""
