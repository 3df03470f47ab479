"""All that measures. It imports the library, which never imports it. README.md lists what there is."""

DEFAULT = "huggingface"
# By name: the module, with its `add_arguments` and `run`, and what it does.
BENCHES = {
    "huggingface": ("huggingface.bench", "compare with Hugging Face generate, side by side"),
    "peers": ("peers.bench", "compare with vLLM's CPU build, llama.cpp and Hugging Face"),
    "step": ("step.bench", "time a decode step on a CPU beside the machine's limits"),
    "paper": ("paper.bench", "measure the paper's figures again"),
    "prefix": ("prefix", "time what a prefix cache saves and costs"),
    "preemption": ("preemption", "compare swapping with recomputation"),
    "bookkeeping": ("bookkeeping", "time the bookkeeping, without a model and beside one"),
}
