"""Arrays that compiled code borrows: handing them on costs nothing.

Numba counts references to every array that a function takes as part of a tuple, atomically; with
the 25 arrays of a cluster's state and rates that is most of the time of a short function. An array
without an owner is not counted. The caller of the compiled loop keeps the owner alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def borrowed(typing_context: Any, arrays: Any) -> Any:
    """The same named tuple, of the same arrays without their owners."""
    del typing_context

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.return_type
        members = []
        for member, value in zip(
            kind.types, cgutils.unpack_tuple(builder, arguments[0]), strict=True
        ):
            if isinstance(member, types.Array):
                view = context.make_array(member)(context, builder, value)
                view.meminfo = ir.Constant(view.meminfo.type, None)
                members.append(view._getvalue())
            else:
                members.append(value)
        return context.make_tuple(builder, kind, members)

    return arrays(arrays), build


borrowed.as_python = lambda arrays: arrays
