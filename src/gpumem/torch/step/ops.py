"""What an op is: the one answer for recording and running, decided from its schema and operands before it runs.

Whatever has a tensor of the device among its arguments is an op that reads it, whoever registered it and whatever it
returns, unless PyTorch's own op is known to touch no bytes (`TOUCHES_NOTHING`, views and questions about shapes) or to
look at the shape only (`LOOKS_AT_SHAPES`). So an op that nobody has heard of is slower than it needs to be, and never
runs on memory that is away. `tests/pytorch/step/test_ops.py` names what a new PyTorch has added to neither list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumem.torch.internals import flop_registry, has_kernel, torch

aten, Tensor = torch.ops.aten, torch.Tensor
IS_ON_DEVICE = {device: f"is_{device}" for device in ("meta", "cpu", "cuda")}  # sooner told than the name of the device
TOUCHES_NOTHING = frozenset(  # of PyTorch's own ops: views, and questions that a tensor answers without its bytes
    f"aten::{name}"
    for name in (
        *("_conj", "_fw_primal", "_make_dual", "_neg_view", "_reshape_alias", "_unsafe_view", "alias", "as_strided"),
        *("detach", "diagonal", "expand", "lift", "lift_fresh", "permute", "select", "slice", "slice_inverse", "split"),
        *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsafe_split"),
        *("unsafe_split_with_sizes", "unsqueeze", "view", "view_as_complex", "view_as_real"),
        *("_test_autograd_multiple_dispatch_view", "_indices", "_values", "indices", "values", "ccol_indices"),
        *("col_indices", "crow_indices", "row_indices", "_dimI", "_dimV", "_nnz", "dense_dim", "sparse_dim"),
        *("is_coalesced", "_fused_sdp_choice", "_has_same_storage_numel", "_assert_tensor_metadata", "is_same_size"),
        *("is_set_to", "q_per_channel_axis", "q_scale", "q_zero_point", "qscheme", "_use_cudnn_ctc_loss"),
        *("_use_miopen_ctc_loss", "dim", "size", "stride", "numel", "sym_size", "sym_stride", "sym_numel"),
        *(
            "sym_storage_offset",
            "storage_offset",
            "is_contiguous",
            "sym_is_contiguous",
            "is_complex",
            "is_floating_point",
        ),
        *("is_signed", "is_conj", "is_neg", "is_inference", "is_leaf", "get_device", "output_nr", "retains_grad"),
        *("_version", "result_type", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"),
    )
)
BLOCKS_HOST = frozenset({"aten::_local_scalar_dense", "aten::equal"})  # what the host waits for, though no tensor comes back
LOOKS_AT_SHAPES = frozenset(  # of PyTorch's own ops: they read no operand
    f"aten::{name}"
    for name in (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
    )
)
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
UNDECLARED_WRITES = {  # what other ops write, and their schema does not say: arguments by name
    **dict.fromkeys(("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"), "running_"),
    "aten::batch_norm_update_stats": "running_",
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"), "dropout_state"),
    **dict.fromkeys(("aten::miopen_rnn", "aten::miopen_rnn_backward"), "dropout_state"),
}
OURS = ("aten", "prims")  # PyTorch's own: they do what their schema says, and nothing besides
IN_PLACE = {  # what gradients' formulas do to zeros of their own: ATen takes the other form wherever a mode is on.
    # A recorder writes down this form; nobody ever runs it instead, as the formula may read its operand again.
    aten.scatter: "scatter_.src",
    aten.scatter_add: "scatter_add_.default",
    aten.index_put: "_index_put_impl_.default",
    aten.index_add: "index_add_.default",
    aten.index_fill: "index_fill_.int_Scalar",
    aten.put: "put_.default",
    aten.masked_scatter: "masked_scatter_.default",
}
WRITTEN_AS = {name: f"{packet.__name__}.{name.partition('.')[2]}" for packet, name in IN_PLACE.items()}
WRITTEN_AS["add_.Tensor"] = "add.Tensor"  # the engine's sum of two gradients
ROWS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")  # they take lists, and may work row by row
CONVOLUTIONS = ("stride", "padding", "dilation", "transposed", "groups")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the schema of an op says: whether it may count, what it writes, what its arguments are called.

    `looks`: its name, the same for the forms in which it is written down; `makes`: it returns tensors; `keeps`: it may
    keep operands where no later op names them; `given`: the arguments that are tensors, or lists of them, where they
    are; `unsaid`: arguments that it writes all the same; `again`: it may be
    called again, and does the same; `grows`: unwatched, a backward pass may do it in place; `resizes`: what it writes
    may get another storage.
    """

    name: str
    looks: str
    counts: bool
    makes: bool
    keeps: bool
    composite: bool
    given: tuple[int, ...]
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
    unsaid: tuple[int, ...]
    again: bool
    grows: bool
    resizes: bool
    flops: Callable[..., int] | None
    attributes: tuple[tuple[int, str], ...]
    may_write: bool


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
    short = str(func).removeprefix("aten.")
    unsaid = tuple(i for i, a in enumerate(arguments) if name in UNDECLARED_WRITES and a.name.startswith(UNDECLARED_WRITES[name]))
    convolves = name in ("aten::convolution", "aten::convolution_backward", "aten::_convolution")
    return Kind(
        name=short,
        looks=out_of_place(short),
        counts=name not in TOUCHES_NOTHING or bool(written),  # their `.out` forms copy
        makes=any("Tensor" in str(r.type) for r in schema.returns),
        keeps=_keeps(name, schema),
        composite=_is_composite(func),
        given=tuple(i for i, a in enumerate(arguments) if "Tensor" in str(a.type)),
        reads=name not in LOOKS_AT_SHAPES,
        overwrites=name in OVERWRITES,
        gathers=short in GATHERS,
        empty=name.removeprefix("aten::").startswith(EMPTY),
        rng=torch.Tag.nondeterministic_seeded in func.tags,
        blocks=name in BLOCKS_HOST,
        rows=name.startswith(ROWS),
        written=tuple(i for i, a in written if not a.kwarg_only),
        outs=tuple(a.name for i, a in written),
        hidden=name in BATCH_NORMS,
        unsaid=unsaid,
        again=name.partition("::")[0] in OURS and not unsaid,
        grows=func is aten.add.Tensor or func.overloadpacket in IN_PLACE,
        resizes=any(a.kwarg_only for _, a in written) or name.removeprefix("aten::").startswith(("resize", "set_")),
        flops=flop_registry.get(func.overloadpacket),
        attributes=tuple((i, a.name) for i, a in enumerate(arguments) if convolves and a.name in CONVOLUTIONS),
        may_write=bool(written) or bool(unsaid) or name in BATCH_NORMS,
    )


def _keeps(name: str, schema: Any) -> bool:
    """Whether an op has to do with nested or quantized tensors, or objects of C++: these have tensors of their own.

    A profiler's marks are tensors whose memory is such an object.
    """
    types = [a.type.kind() for a in (*schema.arguments, *schema.returns)]
    return "nested" in name or "quantize" in name or name.startswith("profiler::") or "ClassType" in types


def _is_composite(func: Any) -> bool:
    """Whether an op is made of others; some questions, as `sym_size.default`, are known to Python alone."""
    try:
        return bool(has_kernel(func.name(), "CompositeImplicitAutograd"))
    except RuntimeError:
        return False


class Call:
    """An op on its way through a pipeline: what is called, its operands on the device, and which of them it writes.

    Then the cells of what it reads and writes, and `key`, what it looks like; `touched`, the cells of its operands and
    results, and `result` when it has run.
    """

    __slots__ = ("args", "func", "key", "kind", "kwargs", "operands", "reads", "result", "touched", "writes", "written")

    reads: list[Any]
    writes: list[Any]
    touched: list[Any]
    key: int
    result: Any

    def __init__(
        self,
        kind: Kind,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        operands: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        self.kind, self.func, self.args, self.kwargs = kind, func, args, kwargs
        self.operands, self.written = operands, written

    @property
    def name(self) -> str:
        """What the op is called."""
        return self.kind.name

    @property
    def given(self) -> dict[str, Any]:
        """All arguments by name, those by position first."""
        return {**dict(zip((a.name for a in self.func._schema.arguments), self.args)), **self.kwargs}

    @property
    def read(self) -> list[torch.Tensor]:
        """The operands whose values the kernel reads."""
        if not self.kind.reads:
            return []
        if not self.kind.overwrites:
            return self.operands
        return [x for x in self.operands if not any(x is y for y in self.written)]

    @property
    def keeps(self) -> bool:
        """Whether it may keep operands where no later op names them."""
        if self.kind.keeps:
            return True
        for x in self.operands:  # noqa: SIM110 - a generator takes a microsecond, and this is asked with every op
            if x.is_nested or x.is_quantized:
                return True
        return False


def out_of_place(name: str) -> str:
    """Return the name of the op that runs where a recorder may have written down its form in place.

    >>> out_of_place("add_.Tensor"), out_of_place("mul_.Tensor")
    ('add.Tensor', 'mul_.Tensor')
    """
    return WRITTEN_AS.get(name, name)


def call_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: str, kind: Kind | None = None
) -> Call | None:
    """Decide whether a call is an op of the device; None where it is not.

    Parameters
    ----------
    func : OpOverload
    args, kwargs
        What it is called with.
    device : str
        Type of the device: `meta`, `cpu`, `cuda`.
    kind : Kind, optional
        Of `func`, where it is known.

    Notes
    -----
    O(arguments). An op counts where an operand lies on the device, or where it has none and makes its result there.
    """
    kind = kind or kind_of(func)
    if not kind.counts:
        return None
    operands = tensors([args[i] for i in kind.given if i < len(args)], device)  # to look at numbers takes longer
    if kwargs:
        operands += tensors(kwargs.values(), device)
    if not operands and (not kind.makes or _made_on(args, kwargs) != device or _nothing(kind, args)):
        return None
    return Call(kind, func, args, kwargs, operands, _written(kind, args, kwargs, device) if kind.may_write else [])


def _written(kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> list[torch.Tensor]:
    """The operands that a call writes."""
    hidden = kind.hidden and len(args) > TRAINING and args[TRAINING]
    positions = (*kind.written, *kind.unsaid, *(RUNNING if hidden else ()))
    written = tensors([args[i] for i in positions if i < len(args)], device) if positions else []
    if kind.outs and kwargs:
        written += tensors([kwargs[name] for name in kind.outs if name in kwargs], device)
    return written


def tensors(values: Iterable[Any], device: str | None) -> list[torch.Tensor]:
    """Return the tensors among (nested) arguments, in order: those on a device, or all."""
    found = []
    there = None if device is None else IS_ON_DEVICE.get(device)
    for value in values:
        if isinstance(value, Tensor):
            if there is None or getattr(value, there):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors(value, device)
    return found


def mapped(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return a (nested) argument with what `of` makes of each item of its lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(x, of) for x in value])
    return of(value)


def flops_of(call: Call) -> int | None:
    """Return the flops of a call that has run, by PyTorch's formula; 0 where it has none, None where that fails."""
    flops = call.kind.flops
    try:
        return 0 if flops is None else int(flops(*call.args, **call.kwargs, out_val=call.result))
    except Exception:  # somebody's own formula is no reason to end a step
        return None


def results(result: Any, device: str | None) -> list[torch.Tensor]:
    """Return the tensors that a call returned: those on a device, or all."""
    return tensors(result if isinstance(result, (list, tuple)) else (result,), device)


def _made_on(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The type of the device on which a call without operands there makes its result; nothing where others tell."""
    device = kwargs.get("device")
    if device is not None:
        return str(torch.device(device).type)
    return "" if tensors((*args, *kwargs.values()), None) else "cpu"


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
