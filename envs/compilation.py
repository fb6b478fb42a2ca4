"""Kernels are compiled at their first call: a line that says so, and a clock that leaves it out.

numba tells of every kernel that it compiles, and nothing of those that its cache on disk has. It
looks at a kernel's own file to see whether what it has is still good; here it looks at all kernels
and constants that the kernel uses, wherever they stand. Of several processes that need a kernel one
compiles it, and the others wait for what it writes.
"""

from __future__ import annotations

import builtins
import fcntl
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import EnumType
from functools import cached_property, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

Listener = Callable[[str], None]  # a line: what begins to be compiled, and how long that takes

SHORT_S = 1.0  # seconds of compiling that nothing is said of
STILL_S = 10.0  # between two lines that say that it goes on, where no run says so
SAID = "MESHWRIGHT_COMPILES"  # environment variable: subjects announced, for all processes of a run
FLOORS = {"envs", "models", "agents", "experiments", "meshwright"}
STEP, CLUSTER = "the simulator of a training step", "the cluster simulator"
ROOMS = {  # by the rooms of the house
    **dict.fromkeys(("cluster", "durations", "interference", "rllib"), CLUSTER),
    **dict.fromkeys(("bandwidth", "graphs", "hybrid", "joint", "partition", "pipeline",
                     "placement", "step"), STEP),
    **dict.fromkeys(("network", "synchronisation"), "the network simulator"),
    "papers": "the simulation of a paper",
}  # fmt: skip


def subject(module: str) -> str:
    """What a kernel belongs to, by the module that it stands in."""
    room = module.removeprefix("meshwright.").partition(".")[2].partition(".")[0]
    return ROOMS.get(room, "kernels")


def _used_by(function: FunctionType) -> dict[str, object]:
    """The globals that a function names, through modules of this project too."""
    scope, found = dict(function.__globals__), {}
    for name in filter(scope.__contains__, function.__code__.co_names):
        value = found[name] = scope[name]
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in FLOORS:
            scope.update(vars(value))
    return found


def _content(kernel: Any, seen: dict[Any, list[object]]) -> None:
    """Write into `seen` what a kernel and those that it calls come to."""
    if kernel in seen:
        return
    function = kernel.py_func
    code = function.__code__
    constants = [c.co_code if isinstance(c, CodeType) else c for c in code.co_consts]
    constants = constants[1:] if function.__doc__ else constants
    seen[kernel] = parts = [code.co_code, constants, kernel.targetoptions]
    for name, value in _used_by(function).items():
        if isinstance(value, Dispatcher):
            _content(value, seen)
        elif isinstance(value, EnumType):
            parts.append(list(value.__members__.items()))
        elif not callable(value) and not isinstance(value, ModuleType):
            parts.append((name, value))


class _Index(IndexDataCacheFile):  # type: ignore[misc]
    """What there is of a kernel on disk: nothing, where it names classes that have moved since."""

    def _load_index(self) -> dict[Any, str]:
        try:
            found: dict[Any, str] = super()._load_index()
        except (ImportError, AttributeError):
            return {}
        return found


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache of a kernel on disk; the key says what the kernel calls, too."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel.py_func)
        self.kernel, self._alone = kernel, False
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Index(self._cache_path, self._impl.filename_base, stamp)

    @cached_property
    def content(self) -> str:
        """Of the kernel and all that it calls, once they are there: at its first call."""
        seen: dict[Any, list[object]] = {}
        _content(self.kernel, seen)
        return hashlib.sha256(repr(list(seen.values())).encode()).hexdigest()

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), self.content)

    def has(self, types: Any, context: Any) -> bool:
        """Whether it has the kernel for arguments of such types."""
        return self._index_key(types, context.codegen()) in self._cache_file._load_index()

    @contextmanager
    def alone(self, types: Any, context: Any) -> Iterator[None]:
        """Inside, no other process compiles the kernel; a thread that is inside compiles alone."""
        with global_compiler_lock:
            if self._alone or self.has(types, context):
                yield
                return
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self._cache_path, f"{self._impl.filename_base}.lock")
            with open(path, "ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    with event.trigger_event("numba:compile", data={"dispatcher": self.kernel}):
                        fcntl.flock(file, fcntl.LOCK_EX)
                except OSError:
                    pass  # a file system without locks
                self._alone = True
                try:
                    yield
                finally:
                    self._alone = False


def kernel(**options: Any) -> Callable[[Any], Any]:
    """A decorator of kernels, `numba.njit` with a cache on disk; small problems need not wait."""

    def made(function: Any) -> Any:
        dispatcher: Any = njit(**options)(function)
        if not hasattr(dispatcher, "py_func"):  # with NUMBA_DISABLE_JIT
            return dispatcher
        dispatcher._cache = _Cache(dispatcher)
        dispatcher.compile = partial(_compiled_once, dispatcher)
        if subject(function.__module__) == CLUSTER:
            dispatcher._compile_for_args = partial(_interpreted_or_compiled, dispatcher)
        return dispatcher

    return made


def _compiled_once(dispatcher: Any, types: Any) -> Any:
    """`Dispatcher.compile`, in one process at a time."""
    with dispatcher._cache.alone(types, dispatcher.targetctx):
        return type(dispatcher).compile(dispatcher, types)


_twins: dict[FunctionType, FunctionType] = {}


def interpreted(function: FunctionType) -> FunctionType:
    """A kernel as plain Python, which calls all other kernels as plain Python."""
    if function not in _twins:
        scope: dict[str, Any] = {"__builtins__": builtins}
        _twins[function] = FunctionType(function.__code__, scope, function.__name__)
        _twins[function].__defaults__ = function.__defaults__
        for name, value in _used_by(function).items():
            if isinstance(value, Dispatcher):
                scope[name] = interpreted(value.py_func)
            else:
                scope[name] = getattr(value, "as_python", value)
    return _twins[function]


def _records(value: Any) -> Any:
    """The same where records of arrays, also of those in a named tuple, have attributes."""
    if isinstance(value, np.ndarray) and value.dtype.names:
        return value.view(np.recarray)
    if isinstance(value, np.void):
        return value.view((np.record, value.dtype))
    return value._make(map(_records, value)) if hasattr(value, "_make") else value


def _arrays(values: Iterable[Any]) -> Iterator[NDArray[Any]]:
    """All arrays, those in named tuples among them."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif hasattr(value, "_make"):
            yield from _arrays(value)


def _size(values: Iterable[Any]) -> int:
    """Rows of the largest array of records, jobs or nodes; where there is none, of any array."""
    arrays = [array for array in _arrays(values) if array.ndim]
    return max(map(len, [a for a in arrays if a.dtype.names] or arrays), default=0)


def _interpreted_or_compiled(dispatcher: Any, *values: Any, **nothing: Any) -> Any:
    """What numba calls for a kernel that it has not compiled for such arguments in this process.

    To compile the simulator of a cluster takes about a minute, in which Python comes through
    thousands of events.
    """
    small = _size(values) <= tier.most_rows and tier.seconds < tier.most_seconds
    if not small or dispatcher in tier.on_disk:
        return type(dispatcher)._compile_for_args(dispatcher, *values, **nothing)
    if dispatcher not in tier.not_on_disk:
        types = tuple(dispatcher.typeof_pyval(value) for value in values)
        known = dispatcher._cache.has(types, dispatcher.targetctx)
        (tier.on_disk if known else tier.not_on_disk).add(dispatcher)
        return _interpreted_or_compiled(dispatcher, *values, **nothing)
    twin = interpreted(dispatcher.py_func)

    def run(*values: Any) -> Any:
        began = time.perf_counter()
        with np.errstate(all="ignore"):
            found = twin(*map(_records, values))
        tier.seconds += time.perf_counter() - began
        return found

    return run


@contextmanager
def compiled_beforehand() -> Iterator[None]:
    """Inside, kernels are compiled however small a problem is, and behind it only for large ones.

    For a process that answers: it would be silent for a minute in the midst of its work.
    """
    rows, tier.most_rows, tier.most_seconds = tier.most_rows, -1, float("inf")
    try:
        yield
    finally:
        tier.most_rows = rows


@dataclass
class Tier:
    """How long kernels are interpreted that are not compiled yet."""

    most_rows: int = 500  # jobs or nodes
    most_seconds: float = 5.0  # in all, in this process
    seconds: float = 0.0
    on_disk: set[Any] = field(default_factory=set)
    not_on_disk: set[Any] = field(default_factory=set)


tier = Tier()


def _both(**options: Any) -> tuple[Any, Any]:
    """Decorators of kernels: of those that Python calls, and of those that only kernels call.

    The latter have no way in from Python, which takes a quarter of the time to compile.
    `tests/envs/test_compilation.py` finds those that are marked wrongly.
    """
    common = {"nogil": True, **options}
    return kernel(**common), kernel(**common, no_cpython_wrapper=True, no_cfunc_wrapper=True)


_UNCHECKED = {"boundscheck": False, "error_model": "numpy"}
_LEAN = {**_UNCHECKED, "_nrt": False}  # allocates nothing

compiled, compiled_inner = _both()
unchecked, unchecked_inner = _both(**_UNCHECKED)
lean, lean_inner = _both(**_LEAN)
joined, joined_inner = _both(forceinline=True)  # a part of those that call it
inlined, inlined_inner = _both(**_LEAN, forceinline=True)  # in loops where every step counts
pasted = kernel(inline="always")  # before types are known


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Watch(event.Listener):  # type: ignore[misc]
    """Sums the seconds of compiling; a kernel inside another is part of it."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self.listeners: list[Listener] = [_on_stderr]  # the last of them is
        self.subjects: list[str] = []  # of kernels that are compiled, each inside the one before
        self._watched = False  # by a thread that says how long it takes
        self._began = 0.0
        self._owner = 0  # thread; numba's lock lets one compile at a time

    def on_start(self, happened: Any) -> None:
        kernel = getattr(happened.data.get("dispatcher"), "py_func", None)
        if not self.subjects:
            self._began, self._owner = time.perf_counter(), threading.get_ident()
        self.subjects.append(subject(str(getattr(kernel, "__module__", ""))))
        self.kernels += 1
        if self.so_far() < SHORT_S:
            return
        what, said = self.subjects[0], os.environ.get(SAID, "")
        if what not in said.split(","):
            os.environ[SAID] = f"{said},{what}"
            about = ", a minute or more where all of it is" if what in {CLUSTER, STEP} else ""
            self.listeners[-1](f"compiling what is new of {what}{about}")
        if not self._watched and self.listeners[-1] is _on_stderr:
            self._watched = True
            threading.Thread(target=self._still, name="compiling", daemon=True).start()

    def _still(self) -> None:
        kernels = -1
        while self.subjects or kernels != self.kernels:
            kernels = self.kernels
            time.sleep(STILL_S)
            if self.subjects and self.listeners[-1] is _on_stderr:
                seconds = self.seconds + time.perf_counter() - self._began
                _on_stderr(f"still compiling {self.subjects[0]}: {seconds:.0f} s")
        self._watched = False

    def on_end(self, happened: Any) -> None:
        self.subjects.pop()
        if not self.subjects:
            self.seconds += time.perf_counter() - self._began

    def so_far(self) -> float:
        """Seconds of compiling, those of a kernel that is being compiled included."""
        running = bool(self.subjects) and self._owner == threading.get_ident()
        return self.seconds + (time.perf_counter() - self._began if running else 0.0)


_watch = _Watch()
event.register("numba:compile", _watch)


def clock() -> float:
    """Seconds of a clock that stands still while this process compiles kernels."""
    return time.perf_counter() - _watch.so_far()


def compiling() -> str | None:
    """What is being compiled now; None: nothing is."""
    subjects = _watch.subjects[:1]
    return subjects[0] if subjects else None


@contextmanager
def telling(listener: Listener) -> Iterator[None]:
    """Inside, what begins to be compiled is said to `listener`; elsewhere on standard error."""
    _watch.listeners.append(listener)
    try:
        yield
    finally:
        _watch.listeners.remove(listener)
