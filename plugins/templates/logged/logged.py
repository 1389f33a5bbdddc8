"""What a plugin has in place of a terminal. An exception that leaves a plugin ends its instance and says nothing; this
writes it to the server's log first. `tidegate plugin test` shows the log below a case that failed."""

import functools
import io
import sys
import types

from componentize_py_types import Err
from wit_world.imports import log
from wit_world.imports.types import Error


class Lines(io.TextIOBase):
    """Lines that are printed, as lines of the log."""

    def __init__(self, level):
        self.level, self.begun = level, ""

    def write(self, text):
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            log.write(self.level, line, [])
        return len(text)

    def end(self):
        """Writes what was begun: the next line may be of another request."""
        if self.begun:
            self.write("\n")


OUT, ERRORS = Lines(log.Level.INFO), Lines(log.Level.WARN)


def is_answer(name, error):
    """An error of the contract, which the host is told as it is. `describe` has none, and one that is not of the contract ends
    the instance as an exception does."""
    told = error.value if isinstance(error, Err) else None
    return name != "describe" and isinstance(told, Error) and isinstance(told.value, str)


def fault(error):
    """The exception, and where it was raised. Not by `traceback`, which reads files: a plugin has none."""
    yield f"{type(error).__name__}: {repr(error.value) if isinstance(error, Err) else error}"
    at = error.__traceback__.tb_next  # The first is the call below.
    while at is not None:
        yield f"    at {at.tb_frame.f_code.co_name} ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})"
        at = at.tb_next


def told(name, call):
    @functools.wraps(call)
    def told_call(*args):
        # Not at the import: that happens while the component is built, where there is no log yet.
        sys.stdout, sys.stderr = OUT, ERRORS
        try:
            try:
                return call(*args)
            finally:
                OUT.end()
                ERRORS.end()
        except BaseException as error:  # `sys.exit()` ends an instance, too.
            for line in [] if is_answer(name, error) else fault(error):
                log.write(log.Level.ERROR, line, [])
            raise

    return told_call


def logged(exports):
    """The same class, whose methods log what they raise unless it is an error of the contract, inherited ones too."""
    calls = {name: call for base in reversed(exports.__mro__) for name, call in vars(base).items()}
    for name, call in calls.items():
        # Static methods and classes can be called too, and are to stay what they are.
        if isinstance(call, types.FunctionType) and not name.startswith("_"):
            setattr(exports, name, told(name, call))
    return exports
