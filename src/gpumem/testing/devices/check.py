"""Hold a device to its contract: random programs leave the bytes that they leave where nothing moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from gpumem.base.arguments import at_least, strict
from gpumem.testing.contract_error import ContractError
from gpumem.testing.devices.calls import (
    AnyDevice,
    Bytes,
    Compute,
    DeviceCall,
    Drop,
    Look,
    Malloc,
    Mixing,
    Put,
    Unmanaged,
    Wrong,
    perform,
)
from gpumem.testing.devices.programs import live_program, widest
from gpumem.testing.shrink import shrink

SMALL = 8  # bytes of a block that fails as well as a large one
DEVICE_RULES = {
    "bytes": "what a program reads is what it reads where nothing moves",
    "refusal": "a freed block is refused with ValueError, and what an op raises comes out of `exec`",
    "error": "a legal call raises nothing",
}


@strict
def check_device(
    factory: Callable[[int], AnyDevice],
    *,
    seed: int = 0,
    examples: int = 100,
    phases: int = 3,
    mixing: Mixing | None = None,
) -> None:
    """Perform random programs on new devices, and hold what they read against a device that moves nothing.

    Parameters
    ----------
    factory : callable
        `factory(needs)` returns a new device; `needs` are the bytes that one op of the program holds at most, and so
        the least limit that a device may be asked to keep. It is closed where it has `close`.
    seed : int
    examples : int
        Programs.
    phases : int
        Deviations of a program at most; see `live_program`.
    mixing : Mixing, optional
        The ops, by default those of the host.

    Raises
    ------
    ContractError
        The rule of `DEVICE_RULES` that was broken, and a short program that breaks it.
    ValueError
        Fewer examples than 1.

    Notes
    -----
    About 2,000 calls a program. One that fails is shortened greedily, as long as it breaks the same rule.

    Examples
    --------
    >>> class Forgetful(Unmanaged):
    ...     def exec(self, op, reads=(), writes=(), **options):
    ...         super().exec(op, reads, writes, **options)
    ...         self.blocks[writes[0]][-1:] = 0
    >>> check_device(lambda needs: Unmanaged(), examples=3)
    >>> check_device(lambda needs: Forgetful(), examples=3)
    Traceback (most recent call last):
    gpumem.testing.contract_error.ContractError: bytes: look 0: byte 7 is 0, not 197
        x5 = device.malloc(8)
        device.exec('layer 0', [], [x5])
        device.read(x5)
    """
    at_least(1, examples=examples)
    random = Random(seed)
    for _ in range(examples):
        calls = live_program(random.getrandbits(32), phases=phases).calls
        if (error := _judged(calls, factory, mixing)) is not None:
            raise _shortest(calls, error, factory, mixing) from None


def _shortest(
    calls: Sequence[DeviceCall], error: ContractError, factory: Callable[[int], AnyDevice], mixing: Mixing | None
) -> ContractError:
    """The error of a short program that breaks the same rule."""

    def fails(some: list[DeviceCall]) -> ContractError | None:
        shorter = _judged(_legal(some), factory, mixing)
        return shorter if shorter is not None and shorter.rule == error.rule else None

    return shrink([*calls], error, fails, _simpler)


def _judged(
    calls: Sequence[DeviceCall], factory: Callable[[int], AnyDevice], mixing: Mixing | None
) -> ContractError | None:
    """Return what is wrong with a device that performs a program, or None."""
    log = [as_line(call) for call in calls]
    try:
        device = factory(widest(calls))
        looks = perform(calls, device, mixing)
        getattr(device, "close", lambda: None)()
    except AssertionError as broken:
        return ContractError("refusal", str(broken), log)
    except Exception as broken:
        return ContractError("error", f"{type(broken).__name__}: {broken}", log)
    for number, (own, right) in enumerate(zip(looks, perform(calls, Unmanaged()))):
        if wrong := _difference(own, right):
            return ContractError("bytes", f"look {number}: {wrong}", log)
    return None


def _difference(own: Bytes, right: Bytes) -> str:
    if len(own) != len(right):
        return f"{len(own)} bytes, not {len(right)}"
    differs = (own != right).nonzero()[0].tolist()
    return f"byte {differs[0]} is {own[differs[0]]}, not {right[differs[0]]}" if differs else ""


def _simpler(call: DeviceCall) -> Iterator[DeviceCall]:
    """Yield simpler forms of a call."""
    match call:
        case Malloc(block, size) if size > SMALL:
            yield Malloc(block, SMALL)
        case Compute(_, reads, writes):
            if not call.fails:
                yield Put(writes[0], 0)
            yield from (replace(call, reads=reads[:place] + reads[place + 1 :]) for place in range(len(reads)))
            yield from (replace(call, writes=writes[:place] + writes[place + 1 :]) for place in range(len(writes[1:])))


def _legal(calls: Iterable[DeviceCall]) -> list[DeviceCall]:
    """Leave out what nobody may call: on blocks that there are not, or that nobody has written."""
    filled: dict[int, bool] = {}  # live blocks, and whether they have bytes
    freed: set[int] = set()
    legal = []
    for call in calls:
        match call:
            case Malloc(block):
                filled[block], right = False, True
            case Drop(block):
                right = block in filled
                filled.pop(block, None)
                freed |= {block} if right else set()
            case Put(block):
                right = block in filled
                filled |= {block: True} if right else {}
            case Look(block):
                right = filled.get(block, False)
            case Compute(_, reads, writes):
                right = all(filled.get(block, False) for block in reads) and all(block in filled for block in writes)
                filled |= dict.fromkeys(writes, True) if right and not call.fails else {}
            case Wrong(_, block):
                right = block in freed
        if right:
            legal.append(call)
    return legal


def as_line(call: DeviceCall) -> str:
    """Return a call as a line of a program.

    >>> as_line(Compute("add", (1, 2), (2,)))
    "device.exec('add', [x1, x2], [x2])"
    """
    match call:
        case Malloc(block, size):
            return f"x{block} = device.malloc({size})"
        case Put(block, seed):
            return f"device.write(x{block}, drawn({seed}))"
        case Look(block):
            return f"device.read(x{block})"
        case Drop(block):
            return f"device.free(x{block})"
        case Wrong(what, block):
            return f"device.{what}(x{block})  # which was freed"
    reads, writes = (", ".join(f"x{block}" for block in row) for row in (call.reads, call.writes))
    fails = f"  # fails {call.fails} its work" if call.fails else ""
    return f"device.exec({call.op!r}, [{reads}], [{writes}]){fails}"
