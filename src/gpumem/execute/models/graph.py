"""Building a training step out of kernels: tensors, ops in issue order, gradients by a tape.

A `Graph` records; `Graph.model()` turns the record into a `Model`: a trace that any planner takes, a launch
that any backend runs, and the initial state. Lifetimes follow from use: a tensor is allocated right before
the first op that touches it and freed right after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.display import Shown
from gpumem.execute import Call, Launch, Views
from gpumem.kernels import in_turn, prebound
from gpumem.trace import RECOMPUTE, ROLES, Op, Trace, position
from gpumem.trace.kinds import ACTIVATION, GRADIENT, INPUT, WORKSPACE
from gpumem.trace.record.recorder import Recorder

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(Shown):
    """A buffer to be: its shape, its type, what it is for, its value at the start if it persists.

    One with a `base` is the same buffer in another shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = FLOAT
    kind: str = ACTIVATION
    value: NDArray[Any] | None = None
    base: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def root(self) -> Tensor:
        """The tensor whose buffer this is."""
        return self if self.base is None else self.base.root

    def reshape(self, *shape: int) -> Tensor:
        """Return the same buffer in another shape."""
        other = Tensor(self.name, shape, self.dtype, self.kind, base=self)
        if other.nbytes != self.nbytes:
            raise ValueError(f"{self.name}: {self.shape} does not reshape to {shape}")
        return other

    def gradient(self) -> Tensor:
        """Return a tensor for the derivative of the loss by this one."""
        return Tensor(f"d({self.name})", self.shape, self.dtype, GRADIENT)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One op: a function of a kernel library, its arrays in order, its options.

    `workspaces` maps each function that can do the work to the floats of workspace it wants, as its last array. A
    random op has a `seed`: its function takes a draw counter after the arrays, then the seed.
    """

    function: str
    arrays: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    options: Mapping[str, Any]
    flops: float
    workspaces: Mapping[str, int]
    seed: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model(Shown):
    """A whole training step.

    Parameters
    ----------
    trace : Trace
        Forward, loss, backward, update; parameters and the optimiser's state are persistent.
    initial : dict of int to array
        The value of each persistent buffer at the start, by id in the trace.
    names : dict of str to int
        Ids of the persistent tensors: parameters (`conv1.w`), their state (`conv1.w.velocity`), `loss`, ...
    steps : list of Step
        What each op does.
    """

    trace: Trace
    initial: dict[int, NDArray[Any]]
    names: dict[str, int]
    steps: list[Step]
    ids: Mapping[Tensor, int]

    def launch(self, library: ModuleType) -> Launch:
        """Return what starts the ops with the kernels of `library`: `gpumem.kernels.reference` or `.device`.

        An op that is recomputed gets nothing of its statistics, and draws the random numbers that it drew before.
        """
        statistics = self.trace.statistics.tolist()

        def bind(op: Op, views: Views) -> Call:
            if not 0 <= op.of < len(self.steps):
                steps = f"not one of the {len(self.steps)} of {self.trace.name!r}"
                raise ValueError(f"op {op.id} ({op.name}): it is recorded as op {op.of}, {steps}")
            step = self.steps[op.of]
            if op.name not in step.workspaces:
                raise ValueError(f"op {op.id} ({op.name}): it can be done by {', '.join(step.workspaces)}")
            is_recomputed = op.role == ROLES[RECOMPUTE]
            absent = statistics[op.of] if is_recomputed else []
            given = [(self.ids[tensor.root], tensor) for tensor in step.arrays]
            arrays = [views(index, tensor.dtype, tensor.shape) for index, tensor in given if index not in absent]
            if step.workspaces[op.name]:
                arrays.append(views.workspace(FLOAT))
            function = _function(library, op.name)
            if step.seed is None:
                return prebound(function, *arrays, **step.options)
            counter = views.generator()
            draw = prebound(function, *arrays, counter, step.seed, **step.options)
            if is_recomputed:
                return draw
            return in_turn([prebound(_function(library, "advance"), counter), draw])

        return bind

    def state(self) -> dict[int, NDArray[Any]]:
        """Return a copy of the initial state, for `run(..., state=...)` to update."""
        return {tensor: value.copy() for tensor, value in self.initial.items()}

    def parameters(self, state: Mapping[int, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Pick the parameters out of a state, by name."""
        return {
            name: state[tensor] for name, tensor in self.names.items() if self.trace.buffers.kind[tensor] == "parameter"
        }

    def workspaces(self, op: int) -> Mapping[str, int]:
        """The implementations of an op and their workspace in bytes: what a `Variant` decision may choose from."""
        return {
            name: floats * FLOAT.itemsize
            for name, floats in self.steps[position(op, len(self.steps), "op")].workspaces.items()
        }


def _function(library: ModuleType, name: str) -> Any:
    function = getattr(library, name, None)
    if function is None:
        problem = f"library: {library!r:.60} has no function {name!r}"
        raise ValueError(f"{problem}; gpumem.kernels.reference and .device have all")
    return function


Backward = Callable[[Tensor], Tensor | None]


@dataclass(slots=True, repr=False)
class Graph(Shown):
    """The record of a training step under construction.

    Layers call `op` for the forward pass and push onto `tape` a function that, given the gradient of their
    output, issues the backward ops and returns the gradient of their input (None if nobody wants it).

    Examples
    --------
    >>> from gpumem.kernels import reference
    >>> graph = Graph(seed=0)
    >>> x = graph.constant("x", np.ones((2, 3), np.float32))
    >>> w = graph.parameter("w", (3, 4))
    >>> y = graph.op("matmul", [x, w], Tensor("y", (2, 4)))
    >>> model = graph.model("one product")
    >>> model.trace.n, model.trace.buffers.kind
    (1, ('input', 'parameter', 'activation'))
    """

    seed: int = 0
    steps: list[Step] = field(default_factory=list)
    tape: list[Backward] = field(default_factory=list)
    gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # parameter, its gradient
    persistent: list[Tensor] = field(default_factory=list)
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def constant(self, name: str, value: NDArray[Any], kind: str = INPUT) -> Tensor:
        """Add a tensor that is there from the start and survives the iteration."""
        tensor = Tensor(name, value.shape, value.dtype, kind, np.ascontiguousarray(value))
        self.persistent.append(tensor)
        return tensor

    def parameter(self, name: str, shape: tuple[int, ...], fan_in: int = 0) -> Tensor:
        """Add a parameter, normal with variance `2 / fan_in` (He et al. 2015); zeros without a `fan_in`."""
        scale = np.sqrt(2 / fan_in) if fan_in else 0.0
        return self.constant(name, (self.rng.standard_normal(shape) * scale).astype(FLOAT), "parameter")

    def state(self, parameter: Tensor, name: str) -> Tensor:
        """Add a tensor of zeros like a parameter, for the optimiser."""
        return self.constant(f"{parameter.name}.{name}", np.zeros(parameter.shape, FLOAT), "state")

    def op(
        self,
        function: str,
        reads: Sequence[Tensor],
        *writes: Tensor,
        arrays: Sequence[Tensor] | None = None,
        flops: float = 0,
        workspaces: Mapping[str, int] | None = None,
        rng: bool = False,
        **options: Any,
    ) -> Tensor:
        """Issue an op; return the last tensor it writes.

        Parameters
        ----------
        function : str
            Its name in the kernel library.
        reads, writes : Tensor
            What it changes in place belongs to both.
        arrays : sequence of Tensor, optional
            The function's arrays in its order, after the stream; by default `reads`, then `writes`.
        workspaces : dict of str to int, optional
            The functions that can do it, and the floats of workspace that each wants as its last array.
        rng : bool, optional
            It draws random numbers, with a seed from the graph's; see `Step`.
        """
        order = tuple([*reads, *writes] if arrays is None else arrays)
        kernels = dict(workspaces or {function: 0})
        roots = [tuple(dict.fromkeys(tensor.root for tensor in some)) for some in (reads, writes)]
        seed = int(self.rng.integers(2**63)) if rng else None
        self.steps.append(Step(function, order, roots[0], roots[1], options, flops, kernels, seed))
        return writes[-1]

    def learn(self, parameter: Tensor, gradient: Tensor) -> None:
        """Leave a parameter and its gradient to the optimiser."""
        self.gradients.append((parameter, gradient))

    def backward(self, gradient: Tensor, tape: list[Backward] | None = None) -> Tensor | None:
        """Unwind a tape, by default all of it, from the gradient of its last output; return that of its input."""
        tape = self.tape if tape is None else tape
        flowing: Tensor | None = gradient
        while tape and flowing is not None:
            flowing = tape.pop()(flowing)
        return flowing

    def model(self, name: str) -> Model:
        """Return the step as a model."""
        device, ids, last = Recorder(), {}, {}

        def make(tensor: Tensor) -> int:
            return device.malloc(tensor.nbytes, kind=tensor.kind, shape=tensor.shape, dtype=tensor.dtype.name)

        for tensor in self.persistent:
            ids[tensor] = make(tensor)
        for index, step in enumerate(self.steps):
            last.update(dict.fromkeys((*step.reads, *step.writes), index))
        for index, step in enumerate(self.steps):
            ids.update({tensor: make(tensor) for tensor in step.writes if tensor not in ids})
            touched = list(dict.fromkeys((*step.reads, *step.writes)))
            _record(step, device, ids, sum(tensor.nbytes for tensor in touched))
            for tensor in touched:
                if last[tensor] == index and tensor.value is None:
                    device.free(ids[tensor])
        trace = device.trace(name=name)
        initial = {ids[tensor]: tensor.value for tensor in self.persistent if tensor.value is not None}
        return Model(trace, initial, {tensor.name: ids[tensor] for tensor in self.persistent}, self.steps, ids)


def _record(step: Step, device: Recorder, ids: dict[Tensor, int], moved: int) -> None:
    """Record an op, with a workspace around it where its kernel needs one."""
    reads, writes = ([ids[tensor] for tensor in some] for some in (step.reads, step.writes))
    if floats := step.workspaces[step.function]:
        writes.append(device.malloc(floats * FLOAT.itemsize, kind=WORKSPACE))
    device.exec(step.function, reads, writes, flops=step.flops, moved=moved, rng=step.seed is not None)
    if floats:
        device.free(writes[-1])
