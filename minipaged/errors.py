"""Every error that minipaged raises on purpose, each a `MinipagedError` with a message of one line.

An error also derives from the built-in exception that a caller would expect (`ValueError` for a bad
argument), so that code which knows nothing of minipaged still catches it. The module imports nothing.
"""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, cut to 200 characters; its kind if there is no message."""
    return " ".join(str(error).split())[:200] or type(error).__name__


class MinipagedError(Exception):
    """The base of all errors of this package."""


class InvalidRequestError(MinipagedError, ValueError):
    """A bad argument of one request: its prompt, its sampling or beam search parameters."""


class InvalidConfigError(MinipagedError, ValueError):
    """A bad argument of the engine itself, such as an unknown dtype or a block size of 0."""


class ModelNotFoundError(MinipagedError, FileNotFoundError):
    """No such model: not a known name, not a folder that holds one, not an id that can be reached."""


class ModelNotSupportedError(MinipagedError):
    """The model is there but can't be run right: its attention or its checkpoint is of a kind not handled."""


class DownloadError(MinipagedError):
    """The default model could not be fetched, or what arrived is not what was expected."""


class BackendUnavailableError(MinipagedError, RuntimeError):
    """The attention backend asked for can't run here: no such device, or a library is missing."""


class EngineDeadError(MinipagedError, RuntimeError):
    """A step failed in a way that leaves the engine's state unknown: no further step is possible."""


class EngineInUseError(MinipagedError, RuntimeError):
    """Another caller of the engine's `step` took the outputs that a call waits for."""


class PolicyError(MinipagedError, RuntimeError):
    """A scheduling policy raised, or its answer is none: a request dropped, repeated or made up."""


class BrokenPoolError(MinipagedError, RuntimeError):
    """The books of the pool don't add up: a block is lost, or two that don't know of each other use it."""


class LearnerError(MinipagedError):
    """Code given with --use can't be loaded, isn't written yet, or does what no engine can live with."""
