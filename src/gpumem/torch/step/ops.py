"""What an op is: the one answer for recording and running, decided from its schema and operands before it runs.

Whatever has a tensor of the device among its arguments is an op that reads it, whoever registered it and whatever it
returns, unless PyTorch's own op is known to touch no bytes (`TOUCHES_NOTHING`, views and questions about shapes) or to
look at the shape only (`LOOKS_AT_SHAPES`). So an unknown op is slower than it needs to be, and never runs on memory
that is off the device. `tests/pytorch/step/test_ops.py` names what a new PyTorch has added to neither list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumem.torch.internals import flop_registry, has_kernel, torch

aten, Tensor = torch.ops.aten, torch.Tensor
# The attribute of a tensor that says whether it is on a device: faster than comparing the device's name.
IS_ON_DEVICE = {device: f"is_{device}" for device in ("meta", "cpu", "cuda")}
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
LOOKS_AT_SHAPES = frozenset(  # of PyTorch's own ops: they read no operand
    f"aten::{name}"
    for name in (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
    )
)
OVERWRITES = frozenset(  # they write their first operand without reading it
    {f"aten::{name}_" for name in ("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential")}
)
# Their first argument is the size of the result.
SIZED = frozenset({"empty.memory_format", "zeros.default", "ones.default", "full.default"})
GATHERS = frozenset(  # of their table they read no more rows than they return
    {"embedding.default", "index.Tensor", "index_select.default", "gather.default"}
)
EMPTY = ("empty", "new_empty")  # they return memory that nothing has been written into
BATCH_NORMS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
RUNNING, TRAINING = (3, 4), 5  # positions of batch norms' arguments: running statistics; whether it is training
UNDECLARED_WRITES = {  # arguments, by the beginning of their name, that ops write although their schema does not say so
    **dict.fromkeys(("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"), "running_"),
    "aten::batch_norm_update_stats": "running_",
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"), "dropout_state"),
    **dict.fromkeys(("aten::miopen_rnn", "aten::miopen_rnn_backward"), "dropout_state"),
}
# Namespaces of PyTorch's own ops: they do what their schema says and nothing besides, so calling one twice is safe.
OWN_NAMESPACES = ("aten", "prims")
IN_PLACE = {  # gradient formulas write into zeros of their own by these; ATen takes the form out of place under a mode.
    # A recorder writes down this form; nobody ever runs it instead, as the formula may read its operand later.
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
CONVOLUTIONS = frozenset({"aten::convolution", "aten::convolution_backward", "aten::_convolution"})
GEOMETRY = ("stride", "padding", "dilation", "transposed", "groups")  # arguments of convolutions that traces keep


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of an op before it is called: from its schema and the closed lists above.

    Parameters
    ----------
    name : str
        As in traces: `mm.default`.
    plan_name : str
        The name by which plans know it, one for the forms in which a recorder writes it down (`out_of_place`).
    may_be_op : bool
        Whether a call may be an op of the device at all; views and questions about shapes are none.
    makes_tensors : bool
        Whether it returns tensors.
    keeps_operands : bool
        Whether it may keep operands where no later op names them, as objects of C++ do.
    composite : bool
        Whether it is made of other ops.
    tensor_positions : tuple of int
        Positions of the arguments that are tensors, or lists of them.
    reads_values : bool
        Whether it reads its operands' bytes, and not their shapes only.
    overwrites : bool
        Whether it writes its first operand without reading it.
    leaves_uninitialised : bool
        Whether the memory that it returns has not been written.
    gathers : bool
        Whether it reads no more rows of its first operand than it returns.
    rng : bool
        Whether it draws random numbers.
    works_row_by_row : bool
        Whether it takes lists of tensors and may be split by rows (`foreach_chunks`).
    written_positions, written_keywords : tuple
        Arguments that it writes by its schema, by position and by name.
    updates_statistics : bool
        Whether it is a batch norm, which writes running statistics in training.
    undeclared_positions : tuple of int
        Arguments that it writes although its schema does not say so.
    repeatable : bool
        Whether calling it a second time does the same, so that a value can be recomputed by it.
    sums_in_place : bool
        Whether a backward pass may do it in place where no dispatch mode is on.
    resizes : bool
        Whether what it writes may have another size afterwards.
    flops_formula : callable, optional
        PyTorch's formula for its flops.
    attributes : tuple of (int, str)
        Positions and names of the arguments that a trace keeps as attributes: those of convolutions.
    may_write : bool
        Whether it may write an operand at all.
    """

    name: str
    plan_name: str
    may_be_op: bool
    makes_tensors: bool
    keeps_operands: bool
    composite: bool
    tensor_positions: tuple[int, ...]
    reads_values: bool
    overwrites: bool
    leaves_uninitialised: bool
    gathers: bool
    rng: bool
    works_row_by_row: bool
    written_positions: tuple[int, ...]
    written_keywords: tuple[str, ...]
    updates_statistics: bool
    undeclared_positions: tuple[int, ...]
    repeatable: bool
    sums_in_place: bool
    resizes: bool
    flops_formula: Callable[..., int] | None
    attributes: tuple[tuple[int, str], ...]
    may_write: bool


def kind_of(func: Any) -> Kind:
    """Read an op's schema; once for each op."""
    entry = _KINDS.get(id(func))  # by id: hashing an op takes longer than all the rest
    if entry is None:
        entry = _KINDS[id(func)] = _kind_of(func), func
    return entry[0]


_KINDS: dict[int, tuple[Kind, Any]] = {}  # with the op itself, so that no other op gets its id


def _kind_of(func: Any) -> Kind:
    schema, name = func._schema, func._schema.name
    arguments = schema.arguments
    short, bare = str(func).removeprefix("aten."), name.removeprefix("aten::")
    declared = [(i, arg) for i, arg in enumerate(arguments) if arg.alias_info is not None and arg.alias_info.is_write]
    prefix = UNDECLARED_WRITES.get(name)
    undeclared = tuple(i for i, arg in enumerate(arguments) if prefix and arg.name.startswith(prefix))
    convolves = name in CONVOLUTIONS
    return Kind(
        name=short,
        plan_name=out_of_place(short),
        may_be_op=name not in TOUCHES_NOTHING or bool(declared),  # their `.out` forms copy
        makes_tensors=any("Tensor" in str(result.type) for result in schema.returns),
        keeps_operands=_keeps(name, schema),
        composite=_is_composite(func),
        tensor_positions=tuple(i for i, arg in enumerate(arguments) if "Tensor" in str(arg.type)),
        reads_values=name not in LOOKS_AT_SHAPES,
        overwrites=name in OVERWRITES,
        leaves_uninitialised=bare.startswith(EMPTY),
        gathers=short in GATHERS,
        rng=torch.Tag.nondeterministic_seeded in func.tags,
        works_row_by_row=name.startswith(ROWS),
        written_positions=tuple(i for i, arg in declared if not arg.kwarg_only),
        written_keywords=tuple(arg.name for _, arg in declared),
        updates_statistics=name in BATCH_NORMS,
        undeclared_positions=undeclared,
        repeatable=name.partition("::")[0] in OWN_NAMESPACES and not undeclared,
        sums_in_place=func is aten.add.Tensor or func.overloadpacket in IN_PLACE,
        resizes=any(arg.kwarg_only for _, arg in declared) or bare.startswith(("resize", "set_")),
        flops_formula=flop_registry.get(func.overloadpacket),
        attributes=tuple((i, arg.name) for i, arg in enumerate(arguments) if convolves and arg.name in GEOMETRY),
        may_write=bool(declared) or bool(undeclared) or name in BATCH_NORMS,
    )


def _keeps(name: str, schema: Any) -> bool:
    """Whether an op has to do with nested or quantized tensors, or objects of C++: these have tensors of their own.

    A profiler's marks are tensors whose memory is such an object.
    """
    types = [value.type.kind() for value in (*schema.arguments, *schema.returns)]
    return "nested" in name or "quantize" in name or name.startswith("profiler::") or "ClassType" in types


def _is_composite(func: Any) -> bool:
    """Whether an op is made of others; some questions, as `sym_size.default`, are known to Python alone."""
    try:
        return bool(has_kernel(func.name(), "CompositeImplicitAutograd"))
    except RuntimeError:
        return False


class Call:
    """A call of an op of the device, filled in on its way through a mode.

    From the beginning: `operands`, its tensors on the device, and `written`, those of them that it writes. `reads` are
    the cells of `operands`, also of those that it overwrites (none, where it looks at shapes only), and `writes` those
    of `written`; `key` is what plans know the op by. Once it has run: `touched`, the cells of its operands,
    then of its results, and `result`.
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
        *,
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
        return {**dict(zip((arg.name for arg in self.func._schema.arguments), self.args)), **self.kwargs}

    @property
    def read(self) -> list[torch.Tensor]:
        """The operands whose values the kernel reads."""
        if not self.kind.reads_values:
            return []
        if not self.kind.overwrites:
            return self.operands
        return [operand for operand in self.operands if not any(operand is written for written in self.written)]

    @property
    def keeps(self) -> bool:
        """Whether it may keep operands where no later op names them."""
        if self.kind.keeps_operands:
            return True
        for operand in self.operands:  # noqa: SIM110 - a generator takes a microsecond, and this is asked with every op
            if operand.is_nested or operand.is_quantized:
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
    if not kind.may_be_op:
        return None
    # only where tensors can be: looking at all arguments takes longer, and this is done with every dispatch
    operands = tensors([args[i] for i in kind.tensor_positions if i < len(args)], device)
    if kwargs:
        operands += tensors(kwargs.values(), device)
    if not operands and (not kind.makes_tensors or _made_on(args, kwargs) != device or _nothing(kind, args)):
        return None
    written = _written(kind, args, kwargs, device) if kind.may_write else []
    return Call(kind, func, args, kwargs, operands=operands, written=written)


def _written(kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> list[torch.Tensor]:
    """The operands that a call writes."""
    trains = kind.updates_statistics and len(args) > TRAINING and args[TRAINING]
    positions = (*kind.written_positions, *kind.undeclared_positions, *(RUNNING if trains else ()))
    written = tensors([args[i] for i in positions if i < len(args)], device) if positions else []
    if kind.written_keywords and kwargs:
        written += tensors([kwargs[name] for name in kind.written_keywords if name in kwargs], device)
    return written


def tensors(values: Iterable[Any], device: str | None) -> list[torch.Tensor]:
    """Return the tensors among (nested) arguments, in order: those on a device, or all."""
    flat = []
    is_on_device = None if device is None else IS_ON_DEVICE.get(device)
    for value in values:
        if isinstance(value, Tensor):
            if is_on_device is None or getattr(value, is_on_device):
                flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat += tensors(value, device)
    return flat


def mapped(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return a (nested) argument with what `of` makes of each item of its lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(item, of) for item in value])
    return of(value)


def flops_of(call: Call) -> int | None:
    """Return the flops of a call that has run, by PyTorch's formula; 0 where it has none, None where that fails."""
    flops = call.kind.flops_formula
    try:
        return 0 if flops is None else int(flops(*call.args, **call.kwargs, out_val=call.result))
    except Exception:  # somebody's own formula is no reason to end a step
        return None


def results(result: Any, device: str | None) -> list[torch.Tensor]:
    """Return the tensors that a call returned: those on a device, or all."""
    return tensors(result if isinstance(result, (list, tuple)) else (result,), device)


def _made_on(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The type of the device where a call without operands there makes its result; "" where its operands decide."""
    device = kwargs.get("device")
    if device is not None:
        return str(torch.device(device).type)
    return "" if tensors((*args, *kwargs.values()), None) else "cpu"


def _nothing(kind: Kind, args: Sequence[Any]) -> bool:
    """Whether a call makes a tensor of no bytes, as batch norm does, or an empty key cache."""
    return kind.name in SIZED and 0 in args[0]


def amount(values: Sequence[torch.Tensor]) -> int:
    """Return the bytes of some tensors as a kernel reads or writes them, each once."""
    total = 0
    for tensor in {id(value): value for value in values}.values() if len(values) > 1 else values:
        size = tensor.nbytes
        if not tensor.is_contiguous():  # `nbytes` of an expanded one counts each element as often as it is repeated
            size = min(size, tensor.untyped_storage().nbytes())
        total += size
    return total
