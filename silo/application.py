"""The application's side of a process: its modules, and the event loop that they run on."""

from __future__ import annotations

import asyncio
import enum
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any, Final

from silo.directory.errors import InvalidSettings, SiloError

COLLECTED_EVERY: Final = (10_000, 20, 20)
"""The garbage collector's thresholds: new objects to a look at the youngest, looks to one at the older."""
COLLECTED_WHILE_IMPORTING: Final = (100_000, 20, 20)
"""Likewise, while a process of ours imports what it needs, which is hardly ever garbage."""
IMPORTING: Final = (importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
"""The files whose frames stand between whoever imports a module and that module."""


class Loop(enum.StrEnum):
    """The event loops to choose from."""

    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


def import_application(name: str) -> ModuleType:
    """The application's module, found from the working directory as `python -m` finds it."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    if name.endswith(".py") or "/" in name:
        raise InvalidSettings(f"{name!r} is a file; name the module as in `import`, such as app.rooms")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidSettings(f"there is no module {name!r} in {os.getcwd()} or among the installed ones") from None
        raise InvalidSettings(f"module {name!r} cannot be imported: {told(error, __file__)}") from None
    except SiloError:
        raise
    except Exception as error:
        raise InvalidSettings(f"module {name!r} cannot be imported: {told(error, __file__)}") from error


def told(error: Exception, *callers: str) -> str:
    """An error of the application: in one line what it is, then its traceback from the application's first frame on.

    Args:
        callers: the files of ours that called the application; their frames, and those of importing, say nothing to it.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (*IMPORTING, *callers):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    what = traceback.format_exception_only(type(error), error)[-1].strip()
    return f"{what}\n{''.join(lines).rstrip()}"


def run_on(loop: Loop | None, work: Coroutine[Any, Any, int]) -> int:
    """Run the work on the loop of this name; None: uvloop where it is installed.

    What has been imported by now is there to stay, and the garbage collector looks at it no more, nor for the garbage
    that imports have left: there is next to none. It looks less often at what comes and goes, too: calls in flight are
    many objects, and hardly any of them is garbage of its kind.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if loop is not Loop.ASYNCIO:
        try:
            import uvloop
        except ImportError:
            if loop is Loop.UVLOOP:
                work.close()
                raise InvalidSettings("--loop uvloop: uvloop is not installed") from None
        else:
            factory = uvloop.new_event_loop
    gc.freeze()
    gc.set_threshold(*COLLECTED_EVERY)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
