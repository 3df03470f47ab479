"""The concepts of PagedAttention in plain Python, one file each, standard library only."""
