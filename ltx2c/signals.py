"""What ends the command early: Ctrl-C, a closed terminal, a limit of CPU time. One signal is enough, at any moment.

Python turns Ctrl-C into an exception between two bytecodes, whichever they are. One that is raised in a finalizer, in a
callback of a weak reference (every import runs some) or in C code that clears errors is gone, and the key press too.
So each phase has its own way:

* starting, nothing to clean up yet: say so and leave, at once and without an exception;
* working: raise ``Stopped``, so that whatever is being written is cleaned up on the way out. One that vanishes before
  the command line has seen it is raised anew;
* stopping: what is being cleaned up and reported is not disturbed by further signals;
* settled: all is done and said, and the signal's own default action ends what is left of the process.

A signal that was ignored when the process began stays ignored (``nohup``), one that somebody else handles stays theirs.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # importing typing would leave a key press more time in which there is no handler yet
if TYPE_CHECKING:
    import signal
    from types import FrameType
else:
    import _signal as signal  # the same without its enumerations, in a tenth of the time

# By the signal's name, since not every system has them all: what is said of the command that it ended.
_ENDINGS = {
    "SIGINT": "interrupted",
    "SIGTERM": "terminated",
    "SIGHUP": "the terminal was closed (SIGHUP)",
    "SIGQUIT": "quit (SIGQUIT)",
    "SIGXCPU": "the limit of CPU time was reached (SIGXCPU)",
    "SIGUSR1": "ended by SIGUSR1",
    "SIGUSR2": "ended by SIGUSR2",
    "SIGALRM": "ended by SIGALRM",
}
ENDINGS: dict[int, str] = {getattr(signal, name): said for name, said in _ENDINGS.items() if hasattr(signal, name)}

_CODES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

# How long a signal may wait for its handler, or a Stopped that vanished for the next one. What lost it, a finalizer
# mostly, has returned by then.
_PATIENCE_SECONDS = 0.02

_STARTING, _WORKING, _STOPPING, _SETTLED = range(4)
_phase = _SETTLED
_received: int | None = None
_taken: list[int] = []
_noted = -1  # the pipe that every signal writes its number to


class Stopped(KeyboardInterrupt):
    """A signal that ends the command.

    Args:
        number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """As shells report it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number

    def __del__(self) -> None:
        global _phase
        if _phase == _STOPPING:  # not settled: nobody has seen it
            _phase = _WORKING
            os.write(_noted, bytes([self.number]))


def take() -> None:
    """Handle, from here on, every signal in ``ENDINGS`` that nobody ignores or handles. In the main thread only."""
    global _phase
    _phase = _STARTING
    sys.unraisablehook = _unraisable
    for number in ENDINGS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            _taken.append(number)
            signal.signal(number, _handle)


def begin_work() -> None:
    """Everything is imported: from here on there may be something to clean up. Nothing happens without ``take``."""
    global _phase, _noted
    if _phase != _STARTING:
        return
    noted, _noted = os.pipe()
    os.set_blocking(_noted, False)
    signal.set_wakeup_fd(_noted, warn_on_full_buffer=False)
    _thread.start_new_thread(_watch, (noted, _thread.get_ident()))
    _phase = _WORKING


def received() -> int | None:
    """The signal that ended the command, or None."""
    return _received


def settle() -> None:
    """The command's end is decided: no signal changes it, or disturbs its report, any more."""
    global _phase
    _phase = _SETTLED


def release() -> None:
    """All is said: further signals act as if there had never been a handler, also while the interpreter ends."""
    while _taken:
        signal.signal(_taken.pop(), signal.SIG_DFL)


def _handle(number: int, frame: FrameType | None) -> None:
    global _phase, _received
    if _phase == _STARTING:
        _leave(number)
    if _phase == _WORKING:
        _phase, _received = _STOPPING, number
        raise Stopped(number)


def _watch(noted: int, main: int) -> None:
    """Signal the main thread until its handler has run.

    It does not run while the thread waits for a lock, if the signal came just before the wait or to another thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    while number := os.read(noted, 1):
        time.sleep(_PATIENCE_SECONDS)
        while _phase == _WORKING and number[0] in _taken:
            signal.pthread_kill(main, number[0])
            time.sleep(_PATIENCE_SECONDS)


def _leave(number: int) -> None:
    """End the process from within the handler, whatever is being imported."""
    said = ENDINGS[number]
    lines = {2: f"ltx2c: error: {said}\n"}
    if "--json" in sys.argv:
        lines[1] = f'{{"error": {{"code": "{code(number)}", "message": "{said}"}}}}\n'
    for descriptor, line in lines.items():
        try:  # noqa: SIM105  # contextlib may not be imported yet
            os.write(descriptor, line.encode())
        except OSError:
            pass
    os._exit(128 + number)


def code(number: int) -> str:
    """The signal's error code, for programs."""
    return _CODES.get(number, "signal")


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """As Python does, but silent about a ``Stopped``, which will be raised anew."""
    if unraisable.exc_type is not Stopped:
        sys.__unraisablehook__(unraisable)
