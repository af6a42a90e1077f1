"""Columns inside, records at the edges: the buffers and the ops of a trace.

Compiled loops read the columns directly (`trace.buffers.size` is an int64 array); people read records
(`trace.buffers[3]`, `trace.ops[3]`). Units: bytes, op index, integer nanoseconds.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.columns.buffers import SPACES as SPACES, Buffer as Buffer, Buffers as Buffers, Shape as Shape
    from gpumem.columns.csr import Csr as Csr, joined as joined
    from gpumem.columns.numbers import (
        F64 as F64,
        I64 as I64,
        MAX_BYTES as MAX_BYTES,
        MAX_NS as MAX_NS,
        MAX_STEPS as MAX_STEPS,
        UNKNOWN as UNKNOWN,
        Bool as Bool,
        dimensions as dimensions,
        first as first,
        int_column as int_column,
        numbered as numbered,
        position as position,
        told as told,
    )
    from gpumem.columns.ops import (
        COMPUTE as COMPUTE,
        COPY_IN as COPY_IN,
        COPY_OUT as COPY_OUT,
        NAMES as NAMES,
        RECOMPUTE as RECOMPUTE,
        ROLES as ROLES,
        SYNC as SYNC,
        THE_HOST as THE_HOST,
        Attributes as Attributes,
        Op as Op,
        Ops as Ops,
    )

face(__name__)
