"""Every sample that PyTorch tests its ops with, under a limit: `python -m tests.pytorch.op_samples [--part k/n]`.

A `Case` is a sample of an op, as it is, with views for its inputs, or in place on a view. `ran` runs its forward,
backward and double backward pass bare, under a mode that does nothing, or under a memory limit, and returns all bits.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpumem.runtime.residency.limited_memory import LimitError
from gpumem.torch import managed
from tests.pytorch.bits import Nothing, at_least, bits
from tests.pytorch.managing import Left, Manage

AS_IS, VIEWS, IN_PLACE = "as is", "views", "in place"
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)
OF_TWENTY = 20  # one part of so many is looked at in each run of the tests
UNLIMITED, WHY = "64GiB", "why"

# What is PyTorch's own doing: under any dispatch mode `isTensorSubclassLike` holds of every tensor, and what asks that
# takes another form, which writes into nothing. Where that gives other bits, a managed run has one or the other.
MODES_OWN: dict[str, str] = {
    "prod": "prod_backward takes exclusive products (prod_safe_zeros_backward), where it else divides by the input",
    "masked.prod": "the backward pass of prod",
    "cumprod": "cumprod_backward sums products over each element, where it else divides by an input without zeros",
    "masked.cumprod": "the backward pass of cumprod",
    "linalg.vander": "it is a cumprod, and so is its backward pass",
    "linalg.det": "linalg_det_backward with a graph takes singular values, where it else solves if it can",
    "masked_fill": "masked_fill_backward sums where(mask, grad, 0), else masked_select(mask): in another order",
    "max.reduction_no_dim": "evenly_distribute_backward multiplies by the mask: a zero may be -0.0",
    **dict.fromkeys(("min.reduction_no_dim", "median", "nanmedian"), "as max.reduction_no_dim"),
}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
    MODES_OWN["clamp"] = "gradients of bounds that are tensors lie otherwise in memory, and are summed in another order"
    MODES_OWN |= dict.fromkeys(("clamp_min", "clamp_max"), "as clamp")
STRIDES_OWN: dict[str, str] = {  # as above, but the values are the same, and lie otherwise in memory
    "linalg.eig": "linalg_eig_backward has diagonal_scatter for diagonal().copy_(): a gradient is a view",
    "linalg.eigh": "as linalg.eig",
    "matrix_exp": "its backward pass puts a matrix together by cat for copy_() into parts: a gradient is a view",
    "ormqr": "householder_product_backward puts columns together by cat for copy_() into a matrix",
    "linalg.qr": "the engine adds gradients into new tensors, not the first: strides of what is empty differ",
    "qr": "as linalg.qr",
    "nn.functional.rms_norm": "as linalg.qr",
}
UNWRITTEN = frozenset(  # what they return nobody wrote: there are no bits to compare
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
UNSTEADY = (
    "gelsy"  # a driver of `linalg.lstsq` that gives other bits from call to call, as it begins with unwritten pivots
)


@dataclass(frozen=True)
class Case:
    """A sample of an op, and how its inputs are given."""

    op: Any
    number: int
    how: str
    sample: Any

    @property
    def name(self) -> str:
        return named(self.op, self.number, self.how)

    def __repr__(self) -> str:
        return f"{self.name}: {self.sample.summary()}"


def named(op: Any, number: int, how: str) -> str:
    """A name that stays the same wherever it is asked for."""
    return f"{full_name(op)} {number} {how}"


def full_name(op: Any) -> str:
    """The name of an op, with its variant's."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def why_none() -> str:
    """Say what is missing where PyTorch's samples cannot be imported, else nothing."""
    try:
        import torch.testing._internal.common_methods_invocations  # noqa: F401
    except ImportError as error:
        return f"no samples of PyTorch's ops: {error}; pip install expecttest"
    return ""


def ops() -> list[Any]:
    """All ops that PyTorch has samples of; the import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if dtype_of(op) is not None and op.name not in UNWRITTEN]


def dtype_of(op: Any) -> torch.dtype | None:
    """The first dtype that an op takes on the host."""
    taken = op.supported_dtypes("cpu")
    return next((dtype for dtype in DTYPES if dtype in taken), None)


def cases(op: Any, wanted: Callable[[str], bool]) -> Iterator[Case]:
    """The cases of an op whose names are wanted."""
    dtype: Any = dtype_of(op)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    hows = (AS_IS, VIEWS, IN_PLACE) if op.get_inplace() is not None else (AS_IS, VIEWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients))
        for number, sample in samples:
            if sample.kwargs.get("driver") != UNSTEADY:
                yield from (Case(op, number, how, sample) for how in hows if wanted(named(op, number, how)))


def chosen(name: str) -> bool:
    """Whether a case is of the fixed twentieth."""
    return zlib.crc32(name.encode()) % OF_TWENTY == 0


# inputs


class Inputs:
    """The inputs of a case, made anew: leaves, and how what the op takes is made of them within the run."""

    def __init__(self, case: Case) -> None:
        self.case, self.leaves = case, []
        self.copied: dict[int, torch.UntypedStorage] = {}
        self.seats: dict[int, tuple[torch.Tensor, Callable[[Any], Any]]] = {}
        self.sample = case.sample.transform(self._leaf)

    def _leaf(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        leaf, how = self._copy(x), self.case.how
        first = how == IN_PLACE and x is self.case.sample.input
        if (how == VIEWS or first) and leaf.layout is torch.strided and not leaf.is_nested and not leaf.is_conj():
            leaf, view = seat(leaf, self.case.number)
            self.seats[id(leaf)] = leaf, view
        leaf.requires_grad_(x.requires_grad)
        self.leaves.append(leaf)
        return leaf

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor with the same bytes and strides; those that shared memory share it again."""
        if x.layout is not torch.strided or x.is_nested:
            return x.detach().clone()
        storage = x.untyped_storage()
        copied = self.copied.setdefault(storage._cdata, storage.clone())
        y = torch.empty(0, dtype=x.dtype).set_(copied, x.storage_offset(), x.shape, x.stride())  # type: ignore[call-overload]
        y = torch._conj(y) if x.is_conj() else y
        return torch._neg_view(y) if x.is_neg() else y

    def taken(self) -> Any:
        """The sample as the op takes it: views of leaves, where these are to be."""
        return self.sample.transform(lambda x: self.seats[id(x)][1](x) if id(x) in self.seats else x)


def seat(x: torch.Tensor, number: int) -> tuple[torch.Tensor, Callable[[Any], Any]]:
    """A tensor to have a view with these values, and what makes the view."""
    if not x.dim():
        base = x.new_zeros(3)
        base[1] = x
        return base, lambda b: b[1]
    if number % 2 and x.dim() > 1:
        return x.transpose(0, -1).clone(memory_format=torch.contiguous_format), lambda b: b.transpose(0, -1)
    base = x.new_zeros((x.shape[0] + 2, *x.shape[1:]))
    base[1:-1] = x
    return base, lambda b: b[1:-1]


# runs


def ran(case: Case, manage: Manage = nullcontext) -> Left:
    """Run a case; return its bits: results, gradients and theirs, what it raised, and the generator's state."""
    inputs, found, raised, why = Inputs(case), {}, "", ""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with manage():
            try:
                for what, values in passes(case, inputs):
                    found.update({f"{what} {k}": x for k, x in enumerate(values)})
            except LimitError:
                raise
            except Exception as error:
                raised, why = type(error).__name__, str(error)
                del error
        left = {name: bits(x) if isinstance(x, torch.Tensor) else (repr(x),) for name, x in found.items()}
        leaves = {f"leaf {k}": bits(x) for k, x in enumerate(inputs.leaves)}
    return (
        left
        | leaves
        | {
            "raised": (raised,),
            WHY: (why,),
            "generator": (torch.get_rng_state().numpy().tobytes(),),
        }
    )


def passes(case: Case, inputs: Inputs) -> Iterator[tuple[str, list[Any]]]:
    """The forward pass, the backward pass, and the backward pass of that."""
    values = forward(case, inputs)
    yield "result", values
    leaves = [x for x in inputs.leaves if x.requires_grad]
    outputs = [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]
    if not leaves or not outputs:
        return
    twice = bool(case.op.supports_gradgrad)
    sign = 1 if case.number % 2 else -1  # zeros have signs, too
    weights = [(torch.randn(x.shape, dtype=x.dtype) * sign).requires_grad_(twice) for x in outputs]
    grads = torch.autograd.grad(outputs, leaves, weights, create_graph=twice, allow_unused=True)
    yield "gradient", [*grads]
    outputs = [x for x in grads if x is not None and x.requires_grad]
    if twice and outputs:
        again = [torch.randn(x.shape, dtype=x.dtype) for x in outputs]
        yield "its gradient", [*torch.autograd.grad(outputs, [*leaves, *weights], again, allow_unused=True)]


def forward(case: Case, inputs: Inputs) -> list[Any]:
    """The results of the op; in place, also what it wrote into."""
    if case.how != IN_PLACE:
        sample = inputs.taken()
        result = case.op(sample.input, *sample.args, **sample.kwargs)
        return leaves_of(sample.output_process_fn_grad(result))
    sample = inputs.sample
    leaf = sample.input
    with torch.set_grad_enabled(bool(case.op.supports_inplace_autograd)):
        base = leaf.clone()
        view = inputs.seats[id(leaf)][1](base) if id(leaf) in inputs.seats else base
        case.op.get_inplace()(view, *sample.args, **sample.kwargs)
    return [base, view]


def leaves_of(result: Any) -> list[Any]:
    """The values of nested results."""
    if isinstance(result, dict):
        return leaves_of([*result.values()])
    if isinstance(result, (list, tuple)):
        return [y for x in result for y in leaves_of(x)]
    return [result]


@dataclass(frozen=True)
class Verdict:
    """What came of a case: how it differs from the bare run, if it does; `own`: how a mode alone does."""

    own: list[str]
    wrong: dict[str, list[str]]  # by limit


def judged(case: Case) -> Verdict:
    """Hold the runs of a case within limits against the bare one."""
    bare, mode = ran(case), Nothing()
    under = ran(case, lambda: mode)
    own, wrong = unlike(bare, under), {}
    how: dict[str, Any] = {"device": "cpu", "wait": True, "planner": "on-demand"}

    def within(limit: int | str) -> Left:
        return ran(case, lambda: managed(limit, **how))

    for which, run in (("unlimited", lambda: within(UNLIMITED)), ("least", lambda: at_least(within, mode.most)[0])):
        try:
            mine = run()
        except AssertionError as error:
            wrong[which] = [str(error)]
            continue
        if (differs := unlike(bare, mine)) and not (owned(full_name(case.op), differs) and not unlike(under, mine)):
            wrong[which] = differs
    return Verdict(own, wrong)


def owned(name: str, differs: list[str]) -> bool:
    """Whether an op is listed as one where a mode alone makes such a difference."""
    return name in MODES_OWN or (name in STRIDES_OWN and all(": strides" in what for what in differs))


def unlike(theirs: Left, mine: Left) -> list[str]:
    """The names of what differs, and how where that is no value."""
    names = [name for name in {**theirs, **mine} if name != WHY and theirs.get(name) != mine.get(name)]
    why = [f"{WHY}: {mine[WHY][0]:.200}"] if "raised" in names and mine[WHY][0] else []
    return [f"{name}{told(theirs.get(name, ()), mine.get(name, ()))}" for name in names] + why


def told(theirs: tuple[Any, ...], mine: tuple[Any, ...]) -> str:
    """How one thing differs: its strides alone, what it raised, or that it is there in one run only."""
    if not theirs or not mine:
        return ": only within" if mine else ": only bare"
    if theirs[0] == mine[0] and theirs[-1] == mine[-1]:
        return f": strides {theirs[2]}, {mine[2]}" if len(theirs) > 2 and theirs[:2] == mine[:2] else ": all but bytes"
    return f": {theirs[0]!r}, {mine[0]!r}" if isinstance(theirs[0], str) and isinstance(mine[0], str) else ""


# by hand


def main(argv: list[str]) -> int:
    """Judge all cases, or a part of them; print each that differs, and what a mode alone makes different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="k/n: the k-th of n parts of the ops")
    parser.add_argument("--ops", default="", help="of these names alone, with commas between")
    args = parser.parse_args(argv)
    part, parts = (int(x) for x in args.part.split("/"))
    torch.set_num_threads(1)
    asked = {*args.ops.split(",")} - {""}
    mine = [op for k, op in enumerate(ops()) if k % parts == part - 1 and (not asked or full_name(op) in asked)]
    gc.collect()
    gc.freeze()  # or a run looks through all of PyTorch's tests whenever it begins
    print(f"torch {torch.__version__}, part {part} of {parts}: {len(mine)} ops", flush=True)
    count, wrong, began = 0, 0, time.perf_counter()
    own: dict[str, int] = {}
    for op in mine:
        for case in cases(op, lambda name: True):
            verdict = judged(case)
            count += 1
            own[full_name(op)] = own.get(full_name(op), 0) + bool(verdict.own)
            if verdict.wrong:
                wrong += 1
                print(
                    f"{case!r}: {verdict.wrong}; under a mode that does nothing: {verdict.own or 'as bare'}", flush=True
                )
    print(f"{count} cases, {wrong} differ, {time.perf_counter() - began:.0f} s")
    print("a mode alone makes a difference:", {name: n for name, n in own.items() if n})
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
