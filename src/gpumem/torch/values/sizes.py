"""Results whose sizes depend on values: true sizes where these are known, or as is to be assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumem.torch.internals import hidden_from_modes, torch
from gpumem.torch.step.ops import Call, tensors
from gpumem.torch.step.workload import WorkloadError
from gpumem.torch.values.assumed import BALANCED, TELL, Assumptions
from gpumem.torch.values.host_call import mapped
from gpumem.torch.values.known import HOST, META, Doubt, is_number
from gpumem.torch.values.known_values import KnownValues

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)
# Which arguments say how large the results are, of those that PyTorch does not tag; of what it tags, all that it reads,
# but for these, whose first operand is only picked from.
BY = {aten._pack_padded_sequence: (1,), aten.masked_select: (1,), aten.index: (1,), aten._ctc_loss: (1, 2, 3)}
OTHERS = ("torchvision::nms",)  # of one number each, as many as are kept


def depends(call: Call) -> bool:
    """Whether how large the results are depends on values."""
    packet = call.func.overloadpacket
    if packet is aten.index:
        return any(x.dtype in MASKS for x in tensors(call.args[1], None))
    tagged = torch.Tag.dynamic_output_shape in call.func.tags
    return tagged or packet is aten._pack_padded_sequence or call.func._schema.name in OTHERS


# Ops that choose among classes, by what the net computes: which of their results says which, and that is the last
# dimension of where they choose, or the one that they are given.
CHOOSERS = {
    **dict.fromkeys((aten.topk, aten.sort, aten.max, aten.min), 1),
    **dict.fromkeys((aten.argsort, aten.argmax, aten.argmin, aten.multinomial), 0),
}
OF_ALL = (aten.argmax, aten.argmin)  # they choose among all elements where no dimension is given


class Sizes:
    """Makes results of the sizes that values give.

    Parameters
    ----------
    values : KnownValues
    assumptions : Assumptions
        What to assume of sizes that follow from what the net computes.
    place : callable
        Says where the program is.
    """

    def __init__(self, values: KnownValues, assumptions: Assumptions, place: Callable[[], str]) -> None:
        self.values, self.assumptions, self.place = values, assumptions, place

    def made(self, call: Call) -> Any:
        """Return what an op makes; what it holds is noted by whoever follows it.

        Raises
        ------
        WorkloadError
            Its size follows from what the net computes, and nothing is to be assumed.
        """
        by = BY.get(call.func.overloadpacket)
        deciding = tensors(call.args if by is None else [call.args[position] for position in by], None)
        hosts = {id(tensor): self._host(call, tensor) for tensor in deciding if tensor.is_meta}
        if call.func.overloadpacket is aten.index:
            return self._indexed(call, hosts)
        with hidden_from_modes():
            found = self._run(call, hosts)
            if call.func.overloadpacket is aten._pack_padded_sequence:
                return _without(found[0]), found[1]  # the sizes of its batches are on the host on any device
            return _without(found)

    def _run(self, call: Call, hosts: dict[int, torch.Tensor]) -> Any:
        """Call the op on the host; what is only picked from is zeros there, that take no memory."""

        def host(tensor: torch.Tensor) -> torch.Tensor:
            found = hosts.get(id(tensor))
            return torch.zeros((), dtype=tensor.dtype, device=HOST).expand(tensor.size()) if found is None else found

        return call.func(*[mapped(x, host) for x in call.args], **{k: mapped(x, host) for k, x in call.kwargs.items()})

    def _indexed(self, call: Call, hosts: dict[int, torch.Tensor]) -> Any:
        """Index by places, as many as a mask has."""
        table, indices, *rest = call.args
        places: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in MASKS:
                places.append(index)
            else:
                mask = hosts[id(index)] if index.is_meta else index
                count = int(mask.count_nonzero())
                places += [torch.empty(count, dtype=torch.int64, device=META) for _ in range(index.dim())]
        return call.func(table, places, *rest)

    def choose(self, call: Call) -> None:
        """Note what an op chose among classes, where it is to be assumed: each as often, or the first by all."""
        place = CHOOSERS.get(call.func.overloadpacket)
        if place is None or not self.assumptions.sizes or all(map(self.values.sure, call.read)):
            return
        made = call.result if isinstance(call.result, (list, tuple)) else (call.result,)
        if place >= len(made) or is_number(made[place].dtype) or not call.args[0].dim():
            return
        dim = call.given.get("dim", None if call.func.overloadpacket in OF_ALL else -1)
        with hidden_from_modes():
            chosen = _chosen(call.args[0], made[place], dim, self.assumptions.sizes == BALANCED)
            self.values.given(made[place], chosen, Doubt.TOLD)

    def _host(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        """Return an operand on the host that says how large a result is."""
        found = self.values.read(tensor)
        if found is not None and self.values.sure(tensor):
            return found
        if not self.assumptions.sizes:
            why = f"how many it finds depends on what the net computes; {TELL}"
            raise WorkloadError(f"{call.name} in {self.place()}: {why}")
        if found is None or self.values.doubt(tensor) is Doubt.SUPPOSED:
            found = self._supposed(call, tensor)
        self.assumptions.note(self.place(), f"how many {call.name} finds", self.assumptions.sizes)
        return found

    def _supposed(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        """What an operand of which nothing is known is taken for: so that all is found, or every second."""
        with hidden_from_modes():
            places = torch.arange(tensor.numel(), device=HOST).reshape(tensor.size())
            if call.func.overloadpacket in (aten.nonzero, aten.masked_select, aten.index):
                chosen = places % 2 == 0 if self.assumptions.sizes == BALANCED else torch.ones_like(places)
                return chosen.to(tensor.dtype)
            return (places // 2 if self.assumptions.sizes == BALANCED else places).to(tensor.dtype)


def _chosen(of: torch.Tensor, made: torch.Tensor, dim: int | None, balanced: bool) -> torch.Tensor:
    """Classes by turns, `count` different ones for each that chooses; or the first `count` for all."""
    sizes, keeps = list(made.size()), made.dim() == of.dim()  # or the dimension of the classes is gone
    count = sizes.pop(-1 if dim is None else dim) if keeps else 1
    classes = of.numel() if dim is None else of.size(dim)
    places = torch.arange(made.numel(), device=HOST).reshape(*sizes, count)
    chosen = places % (classes if balanced else count)
    return (chosen.movedim(-1, -1 if dim is None else dim) if keeps else chosen.squeeze(-1)).to(made.dtype)


def _without(found: Any) -> Any:
    """What an op of the host returned, without values."""
    if isinstance(found, torch.Tensor):
        size = found.untyped_storage().nbytes()  # more than it needs, where a kernel began with as many as there may be
        storage = torch.empty(size, dtype=torch.uint8, device=META).untyped_storage()
        made = torch.empty(0, dtype=found.dtype, device=META)
        return made.set_(storage, 0, found.size(), found.stride())
    return type(found)(map(_without, found)) if isinstance(found, (list, tuple)) else found
