"""The same step without a device and for real on the host: where the two lists of ops part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.names import one_of
from gpumem.base.units import human
from gpumem.pipeline.report import columns
from gpumem.torch.capture.capture import record
from gpumem.torch.capture.captured import Captured
from gpumem.torch.capture.explain import ByBackend, Unmatched, explain
from gpumem.torch.capture.op_lists import ComparedOp, in_common, ops_of
from gpumem.torch.step.workload import Make, WorkloadError, name_of
from gpumem.trace import Trace
from gpumem.trace.kinds import PARAM

ROWS = 20  # modules in a report; not tuned
NAMED = 4  # ops in a cell of a report; not tuned
HOST = "cpu"


@dataclass(frozen=True, slots=True)
class Parting:
    """How the ops of a module part in a phase, beside what differs by backend.

    Parameters
    ----------
    phase, module : str
    device, host : dict of str to int
        Ops that only one of the lists has, and how many.
    sizes : dict of str to int
        Ops of one name in both, with operands of other sizes.
    order : int
        Ops that are the same in another order.
    at : int
        The first of them: the op of the device's list at which the two part.
    """

    phase: str
    module: str
    device: Mapping[str, int]
    host: Mapping[str, int]
    sizes: Mapping[str, int]
    order: int
    at: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CaptureComparison(Shown):
    """A step recorded twice: on a device that is not there (or is), and for real on the host.

    Parameters
    ----------
    device, host : Captured
    batch : int, optional
        As `make` was asked for.
    same : int
        Ops that both lists have, in the same order, by name and operand sizes, module and phase.
    by_backend : tuple of ByBackend
        Where they part as CUDA and the host do on purpose, a row each.
    partings : tuple of Parting
        Where they part besides: what to look at.
    """

    device: Captured
    host: Captured
    batch: int | None
    same: int
    by_backend: tuple[ByBackend, ...]
    partings: tuple[Parting, ...]

    @property
    def agrees(self) -> bool:
        """Whether nothing is to be looked at: all that differs, differs by backend."""
        return not self.partings and self._parameters[0] == self._parameters[1]

    @property
    def _parameters(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return parameters(self.device.trace), parameters(self.host.trace)

    def _facts(self) -> Facts:
        return {"": self._subject, "ops the same": self.same, "verdict": self.verdict}

    @property
    def _subject(self) -> str:
        return self.device.trace.name + ("" if self.batch is None else f" at batch {self.batch}")

    @property
    def verdict(self) -> str:
        """Return in a few words how the two lists compare.

        `equal`, `equal but for what differs by backend`, or where they part.
        """
        if self.partings:
            first = min(self.partings, key=lambda parting: parting.at)
            where = f" in {first.module}" if first.module else ""
            return f"parts at op {first.at} ({first.phase}{where})"
        if not self.agrees:
            (own, _), (hosts, _) = self._parameters
            return f"{own} parameters, {hosts} on the host" if own != hosts else "parameters of other sizes"
        return "equal but for what differs by backend" if self.by_backend else "equal"

    def answer(self) -> str:
        """Return the answer in one line."""
        return f"{self._subject}: without a device and on the host: {self.verdict}"

    def row(self) -> dict[str, object]:
        """Return all figures; sizes in bytes."""
        sides = {"device": self.device.trace, "host": self.host.trace}
        return {
            "name": self.device.trace.name,
            "batch": self.batch,
            "agrees": self.agrees,
            "verdict": self.verdict,
            "same": self.same,
            **{
                side: {
                    "ops": trace.n,
                    "peak_live_bytes": trace.peak_live_bytes,
                    **dict(zip(("parameters", "parameter_bytes"), parameters(trace))),
                }
                for side, trace in sides.items()
            },
            "by_backend": [
                {
                    "what": form.what,
                    "why": form.why,
                    "units": form.units,
                    "device": [*form.device],
                    "host": [*form.host],
                }
                for form in self.by_backend
            ],
            "partings": [
                {
                    **{"module": parting.module, "phase": parting.phase, "at": parting.at, "order": parting.order},
                    **{"device": dict(parting.device), "host": dict(parting.host), "sizes": dict(parting.sizes)},
                }
                for parting in self.partings
            ],
            "notes": [*self.device.notes],
        }

    def report(self) -> str:
        """Return the answer, and below it the figures as tables."""
        parts = [self.answer(), columns([*self._figures()])]
        if self.by_backend:
            parts.append("by backend, as expected\n" + columns([*self._expected()]))
            parts.append("\n".join(dict.fromkeys(f"  {form.what}: {form.why}" for form in self.by_backend)))
        if self.partings:
            parts.append("to be looked at\n" + columns([*self._parted()]))
        return "\n\n".join(parts)

    def _figures(self) -> Iterator[list[str]]:
        own, hosts = self.device.trace, self.host.trace
        yield ["", "device", "host"]
        yield ["  ops", str(own.n), str(hosts.n)]
        yield ["  of them the same", str(self.same), str(self.same)]
        yield ["  peak live bytes", human(own.peak_live_bytes), human(hosts.peak_live_bytes)]
        yield ["  parameters", *(f"{count}: {human(size)}" for count, size in self._parameters)]

    def _expected(self) -> Iterator[list[str]]:
        yield ["  what", "times", "device's ops", "host's ops"]
        for form in self.by_backend:
            yield [f"  {form.what}", str(form.units), str(len(form.device)), str(len(form.host))]

    def _parted(self) -> Iterator[list[str]]:
        yield ["  module", "phase", "op", "device only", "host only", "other sizes", "other order"]
        for parting in self.partings[:ROWS]:
            cells = (_listed(parting.device), _listed(parting.host), _listed(parting.sizes), str(parting.order or "-"))
            yield [f"  {parting.module or '(none)'}", parting.phase, str(parting.at), *cells]
        if (more := len(self.partings) - ROWS) > 0:
            yield [f"  ({more} more)"]


def _listed(ops: Mapping[str, int]) -> str:
    names = [f"{name} x{count}" if count > 1 else name for name, count in ops.items()]
    return ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])]) or "-"


def parameters(trace: Trace) -> tuple[int, int]:
    """Return how many parameters a captured step has, and their bytes."""
    own = [size for size, kind in zip(trace.buffers.size.tolist(), trace.buffers.kind) if kind == PARAM]
    return len(own), sum(own)


@strict
def compare(
    make: Make,
    *,
    batch: int | None = None,
    device: str = "meta",
    iterations: int = 2,
    warmup: int = 1,
    chunk: int | str | None = None,
    assume: str | None = None,
    name: str = "",
) -> CaptureComparison:
    """Record a training step without a device, and for real on the host; say where the two lists of ops part.

    Parameters
    ----------
    make : callable
        As in `capture`; it is called twice, and its step trains on the host for real: give a batch that fits there.
    batch : int, optional
        Handed on to `make`.
    device : str
        What is compared with the host: `meta`, or `cuda` where there is one.
    iterations, warmup, chunk, assume, name
        As in `capture`.

    Returns
    -------
    CaptureComparison

    Raises
    ------
    WorkloadError
        The step cannot be recorded on one of the two; which is said.

    Notes
    -----
    The last iterations are compared op by op, by name, bytes of what is read and written, module and phase: by a
    longest common subsequence. What CUDA does in another way than the host (fused attention and norms, dropout,
    optimizers on all parameters at once) stands in one table with reasons, `by_backend.FORMS`, and is told apart.

    Two captures, and O(p log p) for p pairs of equal ops.

    Examples
    --------
    >>> import torch
    >>> def make(batch=8):
    ...     net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))
    ...     def step():
    ...         net(torch.randn(batch, 4)).sum().backward()
    ...         net.zero_grad()
    ...     return step
    >>> found = compare(make)
    >>> found.verdict, [row.what for row in found.by_backend]
    ('equal but for what differs by backend', ['dropout'])
    """
    one_of("device", device, ("meta", "cuda"))
    how: dict[str, Any] = {"batch": batch, "iterations": iterations, "warmup": warmup, "chunk": chunk, "assume": assume}
    own, hosts = (_recorded(make, where, name, how) for where in (device, HOST))
    ops, others = ops_of(own.trace), ops_of(hosts.trace)
    pairs = in_common(ops, others)
    sides = (
        Unmatched(ops, _without(len(ops), [place for place, _ in pairs])),
        Unmatched(others, _without(len(others), [other_place for _, other_place in pairs])),
    )
    by_backend = explain(*sides)
    return CaptureComparison(
        own,
        hosts,
        batch=batch,
        same=len(pairs),
        by_backend=tuple(by_backend),
        partings=tuple(_partings(*sides, pairs)),
    )


def _recorded(make: Make, device: str, name: str, how: Mapping[str, Any]) -> Captured:
    try:
        return record(make, device, name=name or name_of(make), **how)
    except WorkloadError as error:
        raise WorkloadError(f"{'on the host' if device == HOST else f'on {device}'}: {error}") from error


def _without(count: int, places: list[int]) -> list[int]:
    return sorted({*range(count)}.difference(places))


def _partings(device: Unmatched, host: Unmatched, pairs: list[tuple[int, int]]) -> Iterator[Parting]:
    """What is left of both sides, by phase and module, in order of the device's list."""
    partings = [_parting(device, host, group, pairs) for group in dict.fromkeys([*device.groups, *host.groups])]
    yield from sorted((parting for parting in partings if parting is not None), key=lambda parting: parting.at)


def _parting(
    device: Unmatched, host: Unmatched, group: tuple[str, str], pairs: list[tuple[int, int]]
) -> Parting | None:
    own, hosts = device.left(group), host.left(group)
    if not own and not hosts:
        return None
    ops, others = Counter(device.ops[place] for place in own), Counter(host.ops[other_place] for other_place in hosts)
    order = (ops & others).total()
    names, other_names = _names(ops - others), _names(others - ops)
    sizes = names & other_names
    before = [place for place, other_place in pairs if hosts and other_place < hosts[0]]
    at = min([*own[:1], *([max(before, default=-1) + 1] if hosts else [])])
    return Parting(
        *group,
        device=dict(names - sizes),
        host=dict(other_names - sizes),
        sizes=dict(sizes),
        order=order,
        at=at,
    )


def _names(ops: Counter[ComparedOp]) -> Counter[str]:
    partings: Counter[str] = Counter()
    for op, count in ops.items():
        partings[op.name] += count
    return partings
