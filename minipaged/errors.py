"""Every error that minipaged raises on purpose, each a `MinipagedError` with a message of one line.

An error also derives from the built-in exception that a caller would expect (`ValueError` for a bad
argument), so that code which knows nothing of minipaged still catches it. The module imports nothing.
"""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, cut to 200 characters; its kind if there is no message."""
    try:
        text = str(error)
    except Exception:  # from the error's own __str__
        text = ""
    return " ".join(text.split())[:200] or type(error).__name__


class MinipagedError(Exception):
    """The base of all errors of this package."""


class InvalidRequestError(MinipagedError, ValueError):
    """A bad argument of one request: its prompt, its sampling or beam search parameters."""


class InvalidConfigError(MinipagedError, ValueError):
    """A bad argument of the engine itself, such as an unknown dtype or a block size of 0."""


class ModelNotFoundError(MinipagedError, FileNotFoundError):
    """No such model: not a known name, not a folder that holds one, not an id that can be reached."""


class ModelNotSupportedError(MinipagedError):
    """The engine can't run a model right: it doesn't handle this kind of attention or of checkpoint."""


class DownloadError(MinipagedError):
    """The default model could not be fetched, or its file is not the expected one."""


class BackendUnavailableError(MinipagedError, RuntimeError):
    """The requested attention backend can't run here: no such device, or a library is missing."""


class EngineDeadError(MinipagedError, RuntimeError):
    """A step failed in a way that leaves the engine's state unknown: no further step is possible."""


class EngineInUseError(MinipagedError, RuntimeError):
    """Another caller of the engine's `step` took the outputs that a call waits for."""


class PolicyError(MinipagedError, RuntimeError):
    """A scheduling policy raised, or dropped, repeated or made up a request."""


class BrokenPoolError(MinipagedError, RuntimeError):
    """The counts of the pool are wrong: a block is lost, or two users don't know that they share it."""


class LearnerError(MinipagedError):
    """Code given with --use can't be loaded, isn't written yet, or breaks a promise to the engine."""
