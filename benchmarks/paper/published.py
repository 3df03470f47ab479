"""What the paper reports: Kwon et al., SOSP 2023, arXiv:2309.06180. Shares are in percent.

Nothing here is ours; every number is compared with one of ours in a row of `minipaged bench paper`.
"""

from __future__ import annotations

# Table 1: slots of the KV cache on each server.
SLOTS = {"opt-13b": 15_700, "opt-66b": 9_700, "opt-175b": 60_100}

# Figure 2: token states, reservation, internal fragmentation, external fragmentation and others.
MEMORY_SHARES = {
    "orca-max": (20.4, 13.3, 57.3, 8.9),
    "orca-pow2": (26.8, 17.9, 13.6, 41.6),
    "orca-oracle": (38.2, 25.2, 0.0, 36.6),
    "paged": (96.3, None, None, None),
}

# Figure 13: requests in a batch, on average; OPT-13B at 2 and 30 requests a second.
BATCHED = {
    "sharegpt": {"orca-max": 7.00, "orca-pow2": 9.81, "orca-oracle": 13.62, "paged": 30.42},
    "alpaca": {"orca-max": 7.00, "orca-pow2": 43.24, "orca-oracle": 72.75, "paged": 132.44},
}
BATCHED_RATES = {"sharegpt": 2.0, "alpaca": 30.0}

# Figures 12, 14, 16 and 17: how many times the rate of another system vLLM sustains.
RATES_SHAREGPT = {"orca-oracle": "1.7 to 2.7", "orca-max": "2.7 to 8", "static": "up to 22"}
RATES_GROUPS = {"one sample": "1.3 times", "6 beams": "2.3 times"}  # Figure 14, against Orca (Oracle)
RATES_PREFIX = {80: 1.67, 341: 3.58}  # Figure 16, against Orca (Oracle)
RATE_CHAT = 2.0  # Figure 17, against all three

# Figure 15 and section 6.3: blocks saved by sharing.
SAVED = {
    ("alpaca", "parallel sampling"): "6.1 to 9.8",
    ("alpaca", "beam search"): "37.6 to 55.2",
    ("sharegpt", "parallel sampling"): "16.2 to 30.5",
    ("sharegpt", "beam search"): "44.3 to 66.3",
}

# Section 7.1, Figure 18a: the paged kernel's time over FasterTransformer's.
KERNEL_OVERHEAD = "20 to 26 % more"
# Section 7.2, Figure 18b.
GOOD_BLOCK_SIZES = {"sharegpt": "16 to 128 best", "alpaca": "16 and 32 well, larger ones worse"}
