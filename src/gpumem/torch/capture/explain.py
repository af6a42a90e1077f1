"""Which differences between two lists of ops the table of `by_backend` explains."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf

from gpumem.torch.capture.by_backend import ALSO, COUNTER, FORMS, FROM_HOST, LISTS, NUMBERS, TO_HOST, Form
from gpumem.torch.capture.op_lists import ComparedOp
from gpumem.torch.step.step_context import OPTIMIZER

NUMBER = 8  # bytes of a number that Python or an optimizer keeps on the host, at most: an int64 or a float64
COPIES = frozenset({"_to_copy", "copy_"})
AT_ONCE = "_foreach_"  # the prefix of ops on lists of tensors
Group = tuple[str, str]  # phase, module
Unit = tuple[list[int], list[int]]  # ops of the device's list, and of the host's


@dataclass(frozen=True, slots=True)
class ByBackend:
    """A difference that stands in the table of what CUDA does in another way than the host.

    Parameters
    ----------
    what, why : str
        Of the row.
    units : int
        How often.
    device, host : tuple of int
        The ops of both lists, by their places.
    """

    what: str
    why: str
    units: int
    device: tuple[int, ...]
    host: tuple[int, ...]


class Unmatched:
    """Ops of one list that are in no common part, until a row of the table takes them."""

    def __init__(self, ops: Sequence[ComparedOp], places: Iterable[int]) -> None:
        self.ops = ops
        self.groups: dict[Group, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for place in places:
            self.groups[ops[place].phase, ops[place].module][called(ops[place])].append(place)

    def left(self, group: Group | None = None) -> list[int]:
        """What no row has taken, in order."""
        groups = self.groups.values() if group is None else [self.groups.get(group, {})]
        return sorted(place for names in groups for places in names.values() for place in places)

    def unit(self, spec: str, group: Group) -> list[int] | None:
        """The ops of one unit among those that are left; None where one of them is missing."""
        names = self.groups.get(group, {})
        matched: list[int] = []
        for name, (least, most) in amounts(spec).items():
            there = names.get(name, [])
            if len(there) < least:
                return None
            matched += there[: int(min(most, len(there)))]
        return matched

    def take(self, places: Iterable[int]) -> None:
        """Take ops away."""
        for place in places:
            self.groups[self.ops[place].phase, self.ops[place].module][called(self.ops[place])].remove(place)


def explain(device: Unmatched, host: Unmatched) -> list[ByBackend]:
    """Take from two sides what the table explains, and return it, a row each; O(ops x rows)."""
    rows: dict[tuple[str, str], list[Unit]] = defaultdict(list)
    beside: dict[Form, Counter[str]] = defaultdict(Counter)  # by phase: how many units
    for group in dict.fromkeys([*device.groups, *host.groups]):
        for (what, why), units in ((LISTS, _lists), (NUMBERS, _numbers)):
            rows[what, why] += _taken(device, host, units(device, host, group))
        for form in FORMS:
            matched = _taken(device, host, _units(form, device, host, group))
            rows[form.what, form.why] += matched
            beside[form][group[0]] += len(matched) if form.around else 0
    for form, phases in beside.items():
        for phase, count in phases.items():
            rows[form.what, form.why] += _taken(device, host, _beside(form, phase, count, device=device, host=host))
    return [
        ByBackend(what, why, len(units), *(tuple(sorted(i for unit in units for i in unit[k])) for k in (0, 1)))
        for (what, why), units in rows.items()
        if units
    ]


def _taken(device: Unmatched, host: Unmatched, units: Iterator[Unit]) -> list[Unit]:
    matched = []
    for unit in units:
        device.take(unit[0])
        host.take(unit[1])
        matched.append(unit)
    return matched


def _units(form: Form, device: Unmatched, host: Unmatched, group: Group) -> Iterator[Unit]:
    """Units of a form, as long as both sides have one."""
    for own, theirs in product(form.device, form.host):
        while (there := device.unit(own, group)) is not None and (instead := host.unit(theirs, group)) is not None:
            if not there and not instead:
                break
            yield there, instead


def _beside(form: Form, phase: str, count: int, *, device: Unmatched, host: Unmatched) -> Iterator[Unit]:
    """What may stand beside so many units of a form, on either side, anywhere in the phase."""
    for which, side in enumerate((device, host)):
        budget = {name: most * count for name, (_, most) in amounts(form.around).items()}
        for place in side.left():
            name = called(side.ops[place])
            if side.ops[place].phase == phase and budget.get(name, 0) > 0:
                budget[name] -= 1
                yield ([], [place]) if which else ([place], [])


def _numbers(device: Unmatched, host: Unmatched, group: Group) -> Iterator[Unit]:
    """Ops that differ by values of Python's, which are operands on the host alone."""
    theirs = [(host_op, host.ops[host_op]) for host_op in host.left(group)]
    for device_op in device.left(group):
        op = device.ops[device_op]
        for at, (host_op, other) in enumerate(theirs):
            more = len(other.reads) > len(op.reads)
            if more and (op.name, op.writes, _large(op)) == (other.name, other.writes, _large(other)):
                del theirs[at]
                yield [device_op], [host_op]
                break


def _large(op: ComparedOp) -> list[int]:
    return [size for size in op.reads if size > NUMBER]


def _lists(device: Unmatched, host: Unmatched, group: Group) -> Iterator[Unit]:
    """Calls on lists of tensors on one side that are calls on each tensor on the other; then the order is another."""
    several = False
    for side, other in ((device, host), (host, device)):
        singles: dict[tuple[str, int], list[int]] = defaultdict(list)
        for single in other.left(group):
            if not (op := other.ops[single]).name.startswith(AT_ONCE):
                singles[does(op), op.writes[0] if op.writes else 0].append(single)
        for listed in side.left(group):
            op = side.ops[listed]
            if not op.name.startswith(AT_ONCE):
                continue
            needs = Counter((does(op), size) for size in op.writes)
            if needs and all(len(singles[key]) >= count for key, count in needs.items()):
                matched = [singles[key].pop(0) for key, count in needs.items() for _ in range(count)]
                several = True
                yield ([listed], matched) if side is device else (matched, [listed])
    if several:
        yield from _moved(device, host, group)


def _moved(device: Unmatched, host: Unmatched, group: Group) -> Iterator[Unit]:
    """Ops that are the same in another order."""
    theirs: dict[ComparedOp, list[int]] = defaultdict(list)
    for host_op in host.left(group):
        theirs[host.ops[host_op]].append(host_op)
    for device_op in device.left(group):
        if theirs[device.ops[device_op]]:
            yield [device_op], [theirs[device.ops[device_op]].pop(0)]


def does(op: ComparedOp) -> str:
    """What an op does, in place or not, to one tensor or to a list of them.

    >>> does(ComparedOp("", "", "_foreach_mul_.Scalar", (), ())), does(ComparedOp("", "", "mul.Tensor", (), ()))
    ('mul', 'mul')
    """
    base = op.name.partition(".")[0].removeprefix(AT_ONCE).rstrip("_")
    return ALSO.get(base, base)


def called(op: ComparedOp) -> str:
    """What the table calls an op: its name without the overload, or what it is for."""
    base = op.name.partition(".")[0]
    if base in COPIES and not op.reads:
        return FROM_HOST
    if base in COPIES and not op.writes:
        return TO_HOST
    return COUNTER if op.phase == OPTIMIZER and max((*op.reads, *op.writes), default=0) <= NUMBER else base


@cache
def amounts(spec: str) -> dict[str, tuple[int, float]]:
    """Read how many ops of each name are one unit, at least and at most.

    >>> amounts("bmm*2 mul*3? add+ sum*")
    {'bmm': (2, 2), 'mul': (0, 3), 'add': (1, inf), 'sum': (0, inf)}
    """
    matched: dict[str, tuple[int, float]] = {}
    for word in spec.split():
        name, _, count = word.rstrip("?+").partition("*")
        most = inf if word[-1] == "+" or (word[-1] == "*") else int(count or 1)
        matched[name] = (0 if word[-1] in "?*" else 1 if word[-1] == "+" else int(most)), most
    return matched
