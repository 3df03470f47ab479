"""The evaluation of the PagedAttention paper (SOSP 2023), figure by figure, measured again.

published.py holds what the paper says, simulated.py asks the simulator, measured.py runs this machine.
Page: docs/paper.md.
"""
