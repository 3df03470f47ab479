"""The engine's scheduler and block manager on a server that you don't have, with a cost model for a GPU.

Arrivals -> scheduler -> block manager are the engine's own classes; only the forward pass is replaced, by the
seconds that it would take (cost_model.py). The systems that the paper compares with run beside it.
Page: docs/paper.md.
"""
