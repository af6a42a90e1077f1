"""Results whose sizes depend on values: the true size where these are known, else the size that is assumed."""

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
# Positions of the arguments that decide the sizes of results. Of an op that is not listed, but tagged by PyTorch, all
# operands do; of `masked_select` and `index`, which are tagged, the first operand is only picked from.
BY = {aten._pack_padded_sequence: (1,), aten.masked_select: (1,), aten.index: (1,), aten._ctc_loss: (1, 2, 3)}
OTHERS = ("torchvision::nms",)  # it returns as many numbers as boxes are kept, and PyTorch cannot tag it


def depends(call: Call) -> bool:
    """Whether the sizes of the results depend on values."""
    packet = call.func.overloadpacket
    if packet is aten.index:
        return any(x.dtype in MASKS for x in tensors(call.args[1], None))
    tagged = torch.Tag.dynamic_output_shape in call.func.tags
    return tagged or packet is aten._pack_padded_sequence or call.func._schema.name in OTHERS


# Ops that choose among classes by what the net computes, and the position of the result that has the indices. Classes
# are the last dimension, or the one that is given.
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
        """Return the result of an op, by its size alone; its values are noted afterwards, by `choose` or `follow`.

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
            result = self._run(call, hosts)
            if call.func.overloadpacket is aten._pack_padded_sequence:
                return _without(result[0]), result[1]  # the sizes of its batches are on the host on any device
            return _without(result)

    def _run(self, call: Call, hosts: dict[int, torch.Tensor]) -> Any:
        """Call the op on the host; operands that decide nothing are zeros there, expanded to take no memory."""

        def host(tensor: torch.Tensor) -> torch.Tensor:
            result = hosts.get(id(tensor))
            return torch.zeros((), dtype=tensor.dtype, device=HOST).expand(tensor.size()) if result is None else result

        return call.func(*[mapped(x, host) for x in call.args], **{k: mapped(x, host) for k, x in call.kwargs.items()})

    def _indexed(self, call: Call, hosts: dict[int, torch.Tensor]) -> Any:
        """Index by places in the stead of masks, as many as each mask selects."""
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
        """Note the classes that an op chose, as assumed: each class as often, or the first ones always."""
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
        """Return an operand that decides the size of a result, on the host: its values, or what is assumed of them."""
        result = self.values.read(tensor)
        if result is not None and self.values.sure(tensor):
            return result
        if not self.assumptions.sizes:
            why = f"how many it finds depends on what the net computes; {TELL}"
            raise WorkloadError(f"{call.name} in {self.place()}: {why}")
        if result is None or self.values.doubt(tensor) is Doubt.SUPPOSED:
            result = self._supposed(call, tensor)
        self.assumptions.note(self.place(), f"how many {call.name} finds", self.assumptions.sizes)
        return result

    def _supposed(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        """Assumed values of an operand that is not known: so that all is selected, or every second."""
        with hidden_from_modes():
            places = torch.arange(tensor.numel(), device=HOST).reshape(tensor.size())
            if call.func.overloadpacket in (aten.nonzero, aten.masked_select, aten.index):
                chosen = places % 2 == 0 if self.assumptions.sizes == BALANCED else torch.ones_like(places)
                return chosen.to(tensor.dtype)
            return (places // 2 if self.assumptions.sizes == BALANCED else places).to(tensor.dtype)


def _chosen(of: torch.Tensor, made: torch.Tensor, dim: int | None, balanced: bool) -> torch.Tensor:
    """Indices of chosen classes: by turns, `count` different ones for each choice; or the first `count` always."""
    sizes, keeps = list(made.size()), made.dim() == of.dim()  # or the dimension of the classes is gone
    count = sizes.pop(-1 if dim is None else dim) if keeps else 1
    classes = of.numel() if dim is None else of.size(dim)
    places = torch.arange(made.numel(), device=HOST).reshape(*sizes, count)
    chosen = places % (classes if balanced else count)
    return (chosen.movedim(-1, -1 if dim is None else dim) if keeps else chosen.squeeze(-1)).to(made.dtype)


def _without(result: Any) -> Any:
    """The result of an op on the host, on `meta`."""
    if isinstance(result, torch.Tensor):
        # the storage may be larger than the tensor, where a kernel begins with the most elements that there may be
        size = result.untyped_storage().nbytes()
        storage = torch.empty(size, dtype=torch.uint8, device=META).untyped_storage()
        made = torch.empty(0, dtype=result.dtype, device=META)
        return made.set_(storage, 0, result.size(), result.stride())
    return type(result)(map(_without, result)) if isinstance(result, (list, tuple)) else result
