"""The witness between an allocator and its user agrees with a model that looks at every byte, streams included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from gpumem.testing import ContractError, Witness


class Scripted:
    """Gives the offsets that it is told to, right or wrong; synchronises when it is told to."""

    alignment = 1

    def __init__(self) -> None:
        self.next: tuple[int, bool] = (0, False)
        self.synchronize: Callable[[], None] = lambda: None

    def allocate(self, size: int, *, stream: int = 0) -> int:
        if self.next[1]:
            self.synchronize()
        return self.next[0]

    def free(self, offset: int, *, stream: int = 0) -> None:
        pass

    def use(self, offset: int, *, stream: int = 0) -> None:
        pass


Step = tuple[int, int, int, bool]  # offset, size (0: free there, -1: use it), stream, whether it synchronises


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Mostly blocks where there is room and frees of what is live, on two streams that are seldom synchronised."""
    live: dict[int, int] = {}
    steps = []
    numbers = st.tuples(st.integers(0, 7), st.integers(-1, 3), st.integers(0, 1), st.integers(0, 19))
    for number, size, stream, kind in draw(st.lists(numbers, min_size=12, max_size=20)):
        offset = number
        taken = {byte for low, length in live.items() for byte in range(low, low + length)}
        room = [o for o in range(8) if size > 0 and not taken & set(range(o, o + size))]
        if size <= 0 and live:
            offset = sorted(live)[number % len(live)]
            if size == 0:
                del live[offset]
        elif room and kind > 0:
            offset = room[number % len(room)]
            live[offset] = size
        steps.append((offset, size, stream, kind > 17))
    return steps


def naive_verdicts(steps: Sequence[Step]) -> list[str]:
    """Judge each step, byte by byte, with the whole graph of what comes before what."""
    after: dict[int, set[int]] = {}  # of a step: those that come after it for sure
    last: dict[int, int] = {}  # step of each stream
    holder: dict[int, int] = {}  # of a live byte: the offset of its block
    freed: dict[int, list[int]] = {}  # of a free byte: the step that freed it, and those that used it
    live: dict[int, tuple[int, int]] = {}  # offset: (bytes, step)
    users: dict[int, list[int]] = {}  # the same: steps that used it
    fence = -1
    verdicts = []
    for k, (offset, size, stream, sync) in enumerate(steps):
        if size <= 0 and offset not in live:
            verdicts.append("skip")
            continue
        before = {last[stream]} if stream in last else set()
        if size <= 0:
            length, made = live[offset]
            before.add(made)
        elif sync:
            fence = k
        after[k] = set()
        for j in after:
            if j != k and (j < fence or any(j == b or b in after[j] for b in before)):
                after[j].add(k)
        last[stream] = k
        if size <= 0:
            users.setdefault(offset, []).append(k)
            for byte in range(offset, offset + length) if size == 0 else ():
                del holder[byte]
                freed[byte] = users[offset]
            if size == 0:
                del live[offset], users[offset]
            verdicts.append("ok")
            continue
        mine = range(offset, offset + size)
        if any(byte in holder for byte in mine):
            return [*verdicts, "overlap"]
        if any(k not in after[j] for byte in mine for j in freed.get(byte, ())):
            return [*verdicts, "stream"]
        for byte in mine:
            holder[byte] = offset
            freed.pop(byte, None)
        live[offset] = (size, k)
        verdicts.append("ok")
    return verdicts


@given(scripts())
@settings(max_examples=300)
def test_the_model_agrees_with_one_that_looks_at_every_byte(steps: list[Step]) -> None:
    scripted = Scripted()
    witness, verdicts = Witness(scripted), []
    for offset, size, stream, sync in steps:
        scripted.next = (offset, sync)
        if size <= 0 and offset not in witness.live:
            verdicts.append("skip")
            continue
        try:
            if size > 0:
                witness.allocate(size, stream=stream)
            else:
                (witness.use if size else witness.free)(offset, stream=stream)
            verdicts.append("ok")
        except ContractError as broken:
            verdicts.append(broken.rule)
            break
    assert verdicts == naive_verdicts(steps)


def test_a_block_that_is_handed_over_orders_the_streams() -> None:
    scripted = Scripted()
    witness = Witness(scripted)
    witness.allocate(8)
    witness.free(0)  # bytes 0 to 7: used on stream 0
    scripted.next = (8, False)
    witness.allocate(8)
    witness.free(8, stream=1)  # stream 1 has waited for the block, and so for what came before it on stream 0
    scripted.next = (0, False)
    assert witness.allocate(16, stream=1) == 0
    witness.free(0, stream=1)
    with pytest.raises(
        ContractError, match=r"^stream: allocate\(1\) for stream 2 got bytes \[0, 1\), used on stream 1"
    ):
        witness.allocate(1, stream=2)


def test_what_is_left_of_freed_bytes_stays_with_their_stream() -> None:
    scripted = Scripted()
    witness = Witness(scripted)
    for offset, freed_on in ((0, 0), (8, 1)):  # the second launches what stream 0 did
        scripted.next = (offset, False)
        witness.allocate(8)
        witness.free(offset, stream=freed_on)
    for offset, stream in ((2, 1), (0, 0), (6, 0)):  # stream 1 takes the middle
        scripted.next = (offset, False)
        assert witness.allocate(2, stream=stream) == offset
    scripted.next = (4, False)
    with pytest.raises(ContractError, match="used on stream 0"):
        witness.allocate(1, stream=2)


def test_order_goes_from_stream_to_stream() -> None:
    scripted = Scripted()
    witness = Witness(scripted)
    for offset, stream, freed_on in ((0, 0, 0), (8, 0, 1), (16, 1, 2)):  # stream 2 waits for 1, which has waited for 0
        scripted.next = (offset, False)
        witness.allocate(8, stream=stream)
        witness.free(offset, stream=freed_on)
    scripted.next = (0, False)
    assert witness.allocate(8, stream=2) == 0


def test_what_was_freed_before_a_synchronisation_inside_free_is_everybodys() -> None:
    class Waits(Scripted):
        def free(self, offset: int, *, stream: int = 0) -> None:
            self.synchronize()

    witness = Witness(Waits())
    witness.allocate(8)
    witness.free(0)
    assert witness.allocate(8, stream=1) == 0
