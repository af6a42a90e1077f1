"""One iteration: its buffers, its ops, lifetimes on a circle, and where each buffer lies.

Columns inside, records at the edges. Begin with `trace`; `columns` says what the columns are made of. `lifetimes` and
`batch` make other traces of one; `record` is how a program becomes one.

Compiled loops read the columns directly (`trace.buffers.size` is an int64 array); people read records
(`trace.buffers[3]`, `trace.ops[3]`). Units: bytes, op index, integer nanoseconds.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.trace.batch import (
        FINE as FINE,
        MOST as MOST,
        batch_of as batch_of,
        largest as largest,
        place_of as place_of,
        rebatch as rebatch,
        recorded_batch as recorded_batch,
        step_at as step_at,
    )
    from gpumem.trace.buffers import SPACES as SPACES, Buffer as Buffer, Buffers as Buffers, Shape as Shape
    from gpumem.trace.columns import (
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
        optional_column as optional_column,
        position as position,
    )
    from gpumem.trace.csr import Csr as Csr, joined as joined
    from gpumem.trace.kinds import (
        ACT_GRAD as ACT_GRAD,
        ACTIVATION as ACTIVATION,
        GENERATOR as GENERATOR,
        GENERATOR_BYTES as GENERATOR_BYTES,
        GRADIENT as GRADIENT,
        INPUT as INPUT,
        OPT_STATE as OPT_STATE,
        OPT_TEMP as OPT_TEMP,
        OTHER as OTHER,
        PARAM as PARAM,
        PER_SAMPLE as PER_SAMPLE,
        STATISTICS as STATISTICS,
        TEMP as TEMP,
        WORKSPACE as WORKSPACE,
        recorded_statistics as recorded_statistics,
        statistics_by_kind as statistics_by_kind,
    )
    from gpumem.trace.ops import (
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
    from gpumem.trace.placement import NOWHERE as NOWHERE, Placement as Placement
    from gpumem.trace.trace import Accesses as Accesses, Trace as Trace

lazy_interface(__name__)
