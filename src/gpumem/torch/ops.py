"""What an op is: the one answer for recording and running, decided from its schema and operands before it runs.

No ops are views (aliases that write nothing, `_unsafe_view`, `unsafe_split`, `lift_fresh`), questions about shapes,
calls without tensors (a profiler's marks) and whatever stays off the device. `.item()` and `equal` are ops: the host
waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumem.torch._torch import flop_registry, torch

aten, Tensor = torch.ops.aten, torch.Tensor
THERE = {device: f"is_{device}" for device in ("meta", "cpu", "cuda")}  # sooner told than the name of the device
NO_OPS = frozenset(
    {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::lift_fresh", "aten::lift"}
)
ASKS = frozenset({"aten::_local_scalar_dense", "aten::equal"})  # what the host waits for, though no tensor comes back
NO_READS = ("_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")  # they look at the shape
OVERWRITES = frozenset(  # what they write they do not read, though it was there before
    {f"aten::{name}_" for name in ("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential")}
)
SIZED = frozenset({"empty.memory_format", "zeros.default", "ones.default", "full.default"})
GATHERS = frozenset(  # of the table they read no more rows than come out
    {"embedding.default", "index.Tensor", "index_select.default", "gather.default"}
)
EMPTY = ("empty", "new_empty")  # memory that nothing is written into
BATCH_NORMS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
RUNNING, TRAINING = (3, 4), 5  # of their arguments: the statistics, whether they are kept
IN_PLACE = {  # what gradients' formulas do to zeros of their own: ATen takes the other form wherever a mode is on
    aten.scatter: "scatter_.src",
    aten.scatter_add: "scatter_add_.default",
    aten.index_put: "_index_put_impl_.default",
    aten.index_add: "index_add_.default",
    aten.index_fill: "index_fill_.int_Scalar",
    aten.put: "put_.default",
    aten.masked_scatter: "masked_scatter_.default",
}
ROWS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")  # they take lists, and may work row by row
CONVOLUTIONS = ("stride", "padding", "dilation", "transposed", "groups")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the schema of an op says: whether it may count, what it writes, what its arguments are called.

    `grows`: unwatched, a backward pass may do it in place; `resizes`: what it writes may get another storage.
    """

    name: str
    counts: bool
    composite: bool
    reads: bool
    overwrites: bool
    empty: bool
    gathers: bool
    rng: bool
    blocks: bool
    rows: bool
    written: tuple[int, ...]
    outs: tuple[str, ...]
    hidden: bool
    grows: bool
    resizes: bool
    flops: Callable[..., int] | None
    attributes: tuple[tuple[int, str], ...]


def kind_of(func: Any) -> Kind:
    """Read an op's schema; once for each op."""
    found = _KINDS.get(id(func))  # hashing an op takes longer than all the rest
    if found is None:
        found = _KINDS[id(func)] = _kind_of(func), func
    return found[0]


_KINDS: dict[int, tuple[Kind, Any]] = {}  # with the op, so that no other one has its id


def _kind_of(func: Any) -> Kind:
    schema, name = func._schema, func._schema.name
    arguments = schema.arguments
    written = [(i, a) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    view = any(a.alias_info is not None for a in arguments) and not written
    makes = any("Tensor" in str(r.type) for r in schema.returns)
    convolves = name in ("aten::convolution", "aten::convolution_backward", "aten::_convolution")
    return Kind(
        name=str(func).removeprefix("aten."),
        counts=not view and name not in NO_OPS and (makes or bool(written) or name in ASKS),
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
        reads=not name.removeprefix("aten::").endswith(NO_READS),
        overwrites=name in OVERWRITES,
        gathers=str(func).removeprefix("aten.") in GATHERS,
        empty=name.removeprefix("aten::").startswith(EMPTY),
        rng=torch.Tag.nondeterministic_seeded in func.tags,
        blocks=name in ASKS,
        rows=name.startswith(ROWS),
        written=tuple(i for i, a in written if not a.kwarg_only),
        outs=tuple(a.name for i, a in written),
        hidden=name in BATCH_NORMS,
        grows=func is aten.add.Tensor or func.overloadpacket in IN_PLACE,
        resizes=any(a.kwarg_only for _, a in written) or name.removeprefix("aten::").startswith(("resize", "set_")),
        flops=flop_registry.get(func.overloadpacket),
        attributes=tuple((i, a.name) for i, a in enumerate(arguments) if convolves and a.name in CONVOLUTIONS),
    )


@dataclass(slots=True)
class Call:
    """An op about to run: its operands on the device, and which of them it writes."""

    kind: Kind
    operands: list[torch.Tensor]
    written: list[torch.Tensor]

    @property
    def read(self) -> list[torch.Tensor]:
        """The operands whose values the kernel reads."""
        if not self.kind.reads:
            return []
        if not self.kind.overwrites:
            return self.operands
        return [x for x in self.operands if not any(x is y for y in self.written)]


def call_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Call | None:
    """Decide whether a call is an op of the device; None where it is not.

    Parameters
    ----------
    func : OpOverload
    args, kwargs
        What it is called with.
    device : str
        Type of the device: `meta`, `cpu`, `cuda`.

    Notes
    -----
    O(arguments). An op counts where an operand lies on the device, or where it has none and makes its result there.
    """
    kind = kind_of(func)
    if not kind.counts:
        return None
    operands = tensors(args, device)
    if kwargs:
        operands += tensors(kwargs.values(), device)
    if not operands and (_made_on(kwargs) != device or _nothing(kind, args)):
        return None
    positions = (*kind.written, *RUNNING) if kind.hidden and args[TRAINING] else kind.written
    written = tensors([args[i] for i in positions if i < len(args)], device) if positions else []
    if kind.outs and kwargs:
        written += tensors([kwargs[name] for name in kind.outs if name in kwargs], device)
    return Call(kind, operands, written)


def tensors(values: Iterable[Any], device: str | None) -> list[torch.Tensor]:
    """Return the tensors among (nested) arguments, in order: those on a device, or all."""
    found = []
    there = None if device is None else THERE.get(device)
    for value in values:
        if isinstance(value, Tensor):
            if there is None or getattr(value, there):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors(value, device)
    return found


def results(result: Any, device: str) -> list[torch.Tensor]:
    """Return the tensors on a device that a call returned."""
    return tensors(result if isinstance(result, (list, tuple)) else (result,), device)


def _made_on(kwargs: Mapping[str, Any]) -> str:
    device = kwargs.get("device")
    return "cpu" if device is None else torch.device(device).type


def _nothing(kind: Kind, args: Sequence[Any]) -> bool:
    """Whether a call makes a tensor of no bytes, as batch norm does on its way, or an empty cache of keys."""
    return kind.name in SIZED and 0 in args[0]


def amount(values: Sequence[torch.Tensor]) -> int:
    """Return the bytes of some tensors as a kernel reads or writes them, each once."""
    total = 0
    for x in {id(x): x for x in values}.values() if len(values) > 1 else values:
        size = x.nbytes
        if not x.is_contiguous():  # one that is expanded counts as often as it is there
            size = min(size, x.untyped_storage().nbytes())
        total += size
    return total
