"""Remembers how the stand-ins were called, so that a test can hold the calls against other versions' signatures."""

from functools import wraps

CALLS: list[tuple[str, tuple, dict]] = []


def recorded(function):
    """The same function, whose calls are remembered under its full name."""
    name = f"{function.__module__}.{function.__qualname__}".replace("._io.", ".io.").removesuffix(".__init__")

    @wraps(function)
    def call(*words, **named):
        CALLS.append((name, words[1:] if "." in function.__qualname__ else words, named))  # without self
        return function(*words, **named)

    return call
