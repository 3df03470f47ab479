"""The same concepts as `minipaged.reference`, file by file, in Triton and Numba."""
