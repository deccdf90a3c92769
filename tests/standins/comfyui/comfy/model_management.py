"""A stand-in: how an interruption is asked for, and what it raises."""

from calls import recorded


class InterruptProcessingException(BaseException):
    """An Exception in 0.3.64, and none in later versions: who cleans up must not miss it."""


_asked = False


@recorded
def interrupt_current_processing(value=True):
    global _asked
    _asked = value


@recorded
def throw_exception_if_processing_interrupted():
    global _asked
    if _asked:
        _asked = False
        raise InterruptProcessingException
