"""Keep libraries from talking while a model is loaded: their reports become errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import huggingface_hub
import transformers


@contextmanager
def quiet_libraries(bars: bool = False) -> Iterator[None]:
    """Silence transformers and the hub. Progress bars stay with `bars`, for a model that is downloaded."""
    libraries = (transformers.utils.logging, huggingface_hub.utils.logging)
    levels = [library.get_verbosity() for library in libraries]
    hide_bars = not bars and not huggingface_hub.utils.are_progress_bars_disabled()
    for library in libraries:
        library.set_verbosity_error()
    if hide_bars:
        transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.set_verbosity(level)
        if hide_bars:
            transformers.utils.logging.enable_progress_bar()
