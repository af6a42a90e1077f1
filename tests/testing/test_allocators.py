"""What finds bugs in allocators and planners: it accepts right ones, and finds every seeded bug, with any seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed as seeded, settings, strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.pool import ALLOCATORS, PLANNERS
from gpumem.testing import (
    OPTIONAL,
    PLANNER_RULES,
    RULES,
    Allocate,
    ContractError,
    Free,
    Player,
    Request,
    Witness,
    WrongFree,
    allocator_machine,
    check_allocator,
    check_planner,
    play,
)
from gpumem.testing.allocators.check import Trial
from gpumem.testing.allocators.request_strategies import request_sizes, requests
from gpumem.testing.strategies import Lifetimes, lifetimes, traces
from gpumem.trace import Trace
from tests import faulty

SEEDS = (0, 1)
RIGHT = (faulty.FirstFit, faulty.Endless, faulty.OneStream, partial(faulty.FirstFit, 64 * 2**20, 512))
EXEMPT = {  # rules that an allocator breaks by design where there is more than one stream
    "caching": "growth",  # waits for another stream only when there is no room
    "expandable": "growth",
    "cnmem": "recovery",  # a pool for each stream
    "streams": "growth",  # as caching
}
BUGS = sorted(faulty.ALLOCATORS, key=str)


def name(factory: Any) -> str:
    return getattr(factory, "__name__", None) or f"{factory.func.__name__}{factory.args}"


def drive(factory: Callable[[], Any], seed: int, **options: Any) -> None:
    """Run the state machine; stop at the first error, without making it small."""
    machine = seeded(seed)(allocator_machine(factory, **options))
    quick = settings(
        max_examples=200,
        stateful_step_count=30,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=quick)
    except FlakyFailure as other:  # what is found in an allocator that cannot be repeated does not always happen again
        raise other.exceptions[0] from None


@pytest.mark.parametrize("factory", RIGHT, ids=name)
def test_right_allocators_are_accepted(factory: Callable[[], Any]) -> None:
    for seed in SEEDS:
        check_allocator(factory, seed=seed, examples=42, streams=3)


@pytest.mark.thorough
@pytest.mark.parametrize("factory", RIGHT, ids=name)
def test_the_machine_accepts_right_allocators(factory: Callable[[], Any]) -> None:
    run_state_machine_as_test(allocator_machine(factory), settings=settings(max_examples=15, deadline=None))


@pytest.mark.parametrize("factory", BUGS, ids=name)
def test_every_bug_is_found(factory: Callable[[], Any]) -> None:
    for seed in SEEDS:
        with pytest.raises(ContractError) as found:
            check_allocator(factory, seed=seed, examples=200)
        error = found.value
        assert error.rule in faulty.ALLOCATORS[factory], f"seed {seed}: {error}"
        assert len(error.log) <= 12, error
        assert str(error).startswith(f"{error.rule}: ")


@pytest.mark.thorough
@pytest.mark.parametrize("factory", BUGS, ids=name)
def test_the_machine_finds_every_bug(factory: Callable[[], Any]) -> None:
    for seed in SEEDS[:1]:
        with pytest.raises(ContractError) as found:
            drive(factory, seed)
        assert found.value.rule in faulty.ALLOCATORS[factory]


def test_every_rule_is_broken_by_some_bug() -> None:
    assert set().union(*faulty.ALLOCATORS.values()) == set(RULES)
    assert set().union(*faulty.PLANNERS.values()) == set(PLANNER_RULES) - {"height"}  # no valid placement is too low


@pytest.mark.parametrize("rule", OPTIONAL)
def test_optional_rules_can_be_skipped(rule: str) -> None:
    breaking = [factory for factory, rules in faulty.ALLOCATORS.items() if rules == {rule}]
    assert breaking
    for factory in breaking:
        check_allocator(factory, skip=[rule], examples=28)


def test_what_is_found_is_short_and_can_be_played_again() -> None:
    with pytest.raises(ContractError) as found:
        check_allocator(faulty.LeftNotMerged)
    assert found.value.log == (
        "p0 = a.allocate(1)  # 0",
        "p1 = a.allocate(1)  # 16",
        "a.free(p0)",
        "a.free(p1)",
        "p2 = a.allocate(4096)  # MemoryError",
    )
    assert Trial(faulty.LeftNotMerged).error(found.value.requests, "recovery") is not None
    assert Trial(faulty.FirstFit).error(found.value.requests) is None


def test_the_request_that_is_refused_is_the_one_that_is_told() -> None:
    with pytest.raises(
        ContractError, match=r"^statistics: request 1, after allocate\(\d+\), blocks.current is 2, right is 1"
    ):
        check_allocator(faulty.RefusedCounted)


def test_a_bug_of_a_later_round_is_shown_from_the_beginning() -> None:
    class ThirdTime(faulty.FirstFit):
        """Hands out byte 16 the third time that it is asked."""

        times = 0

        def allocate(self, size: int, *, stream: int = 0) -> int:
            self.times += 1
            return super().allocate(size, stream=stream) + (7 if self.times == 3 else 0)

    with pytest.raises(ContractError) as found:
        Trial(ThirdTime).run([Allocate(0, 1)])
    assert [line.split("  #")[0] for line in found.value.log] == [
        "p0 = a.allocate(1)",
        "a.free(p0)",
        "p1 = a.allocate(1)",
        "a.free(p1)",
        "p2 = a.allocate(1)",
    ]


def test_the_largest_block_of_a_new_allocator() -> None:
    assert Trial(faulty.FirstFit).largest == 4096
    assert Trial(faulty.FirstFit, max_size=10**5).largest == 4096
    assert Trial(faulty.FirstFit, max_size=100).largest == 100
    assert Trial(partial(faulty.FirstFit, 1000)).largest == 992  # rounds to 16
    assert [Trial(partial(faulty.FirstFit, c, 1), max_size=50).largest for c in range(1, 50)] == list(range(1, 50))
    assert Trial(faulty.Endless).largest == 64 * 2**20


def test_every_seed_gives_the_same_error_again() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(ContractError) as found:
            check_allocator(faulty.InsideFreed, seed=5)
        texts.append(str(found.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "examples: 0 is below 1"),
        ({"streams": 0}, "streams: 0 is below 1"),
        ({"steps": -1}, "steps: -1 is below 1"),
        ({"max_size": 0}, "max_size: 0 is below 1"),
        ({"skip": ["overlap"]}, "skip: 'overlap' is not one of stream, capacity"),
        ({"skip": ["nonsense"]}, "skip: 'nonsense' is not one of stream, capacity"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_allocator(faulty.FirstFit, **options)


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
    for offset, freed_on in ((0, 0), (8, 1)):  # the second hands over what stream 0 did
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


def test_requests_that_mean_nothing_do_nothing() -> None:
    player = Player(Witness(faulty.FirstFit()))
    history: list[Request] = [Free(0), WrongFree(0), Allocate(0, 4), Allocate(1, 10**6), Free(1), WrongFree(0), Free(0)]
    for request in [*history, Free(0), WrongFree(0), WrongFree(-1, -1), Allocate(2, 0)]:
        player.perform(request)
    assert player.done == [Allocate(0, 4), Allocate(1, 10**6), Free(0), WrongFree(0), WrongFree(-1, -1), Allocate(2, 0)]
    assert player.offsets == [0, None, None]
    assert player.log == [
        "p0 = a.allocate(4)  # 0",
        "p1 = a.allocate(1000000)  # MemoryError",
        "a.free(p0)",
        "a.free(0)  # ValueError",
        "a.free(-1)  # ValueError",
        "p2 = a.allocate(0)  # ValueError",
    ]


@pytest.mark.parametrize("capacity", [None, 64 * 2**20])
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_the_allocators_of_the_package(allocator: str, capacity: int | None) -> None:
    factory = partial(ALLOCATORS[allocator], capacity=capacity)
    check_allocator(factory, streams=1, examples=14)
    check_allocator(factory, examples=28, skip=[EXEMPT[allocator]] if allocator in EXEMPT else ())


@pytest.mark.parametrize("allocator", sorted(EXEMPT))
def test_what_is_exempt_is_broken(allocator: str) -> None:
    rule = EXEMPT[allocator]
    factory = partial(ALLOCATORS[allocator], capacity=None if rule == "growth" else 64 * 2**20)
    with pytest.raises(ContractError, match=f"^{rule}: "):
        check_allocator(factory)


@pytest.mark.thorough
@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_the_planners_of_the_package(planner: str) -> None:
    options = {"search": {"effort": 0.001}}.get(planner, {})
    for alignment in (1, 256):
        check_planner(partial(PLANNERS[planner], alignment=alignment, **options), alignment=alignment, examples=100)


@pytest.mark.parametrize("planner", sorted(faulty.PLANNERS, key=name), ids=name)
def test_every_bug_of_a_planner_is_found(planner: Callable[[Trace], Any]) -> None:
    check_planner(faulty.placed, alignment=16)
    for seed in SEEDS:
        with pytest.raises(ContractError) as found:
            check_planner(planner, seed=seed, alignment=16 if planner is faulty.not_aligned else 1)
        assert found.value.rule in faulty.PLANNERS[planner]
        assert len(found.value.log) == 1


def test_the_trace_that_fails_is_small_and_can_be_made_again() -> None:
    for planner in (faulty.forgets_arcs, faulty.on_the_host):
        with pytest.raises(ContractError) as found:
            check_planner(planner)
        line = found.value.log[0]
        names: dict[str, Any] = {}
        exec(f"from gpumem.trace import Buffers, Ops\nfrom gpumem.trace import Trace\n{line}", names)
        assert len(names["trace"].buffers) <= 2
        with pytest.raises(CheckError, match=str(found.value.reason.split(":")[0])):
            check.placement(names["trace"], planner(names["trace"]))


@pytest.mark.parametrize("rule", ["deterministic", "unchanged"])
def test_a_planner_may_be_allowed_to_break(rule: str) -> None:
    planner = {"deterministic": faulty.at_random, "unchanged": faulty.sorts_in_place}[rule]
    check_planner(planner, skip=[rule], examples=20)


@given(requests(max_size=5000, streams=3))
def test_requests_are_legal(found: list[Allocate | Free]) -> None:
    live: set[int] = set()
    for k, request in enumerate(found):
        if isinstance(request, Allocate):
            assert 1 <= request.size <= 5000
            assert request.block == sum(isinstance(r, Allocate) for r in found[:k])
            live.add(request.block)
        else:
            live.remove(request.block)
        assert 0 <= request.stream < 3


@given(requests(max_size=4096))
def test_requests_can_be_played(found: list[Allocate | Free]) -> None:
    offsets = play(faulty.FirstFit(), found)
    assert len(offsets) == sum(isinstance(request, Allocate) for request in found)


@given(lifetimes(), lifetimes(wrap=False))
def test_lifetimes_make_traces(free: Lifetimes, bound: Lifetimes) -> None:
    for instance in (free, bound):
        trace = Trace.from_lifetimes(instance.size, instance.start, instance.end, n=instance.n)
        assert len(trace.buffers) >= 1
    assert max(bound.end) <= bound.n


FORGOTTEN: dict[str, Callable[[Trace], Any]] = {
    "arcs": lambda t: (t.buffers.end > t.n).any(),
    "all the time": lambda t: (t.buffers.end - t.buffers.start == t.n).any() and t.n > 1,
    "zero bytes": lambda t: (t.buffers.size == 0).any(),
    "in place": lambda t: any(set(op.reads) & set(op.writes) for op in t.ops),
    "equal lifetimes": lambda t: (
        [(b.start, b.end) for b in t.buffers][1:2] == [(b.start, b.end) for b in t.buffers][:1]
    ),
    "equal sizes": lambda t: len(set(t.buffers.size.tolist())) < len(t.buffers),
    "streams": lambda t: len(set(t.ops.stream.tolist())) > 1,
    "host": lambda t: t.buffers.host.any(),
    "persistent": lambda t: t.buffers.persistent.any(),
    "never touched": lambda t: len({*t.ops.reads.idx.tolist(), *t.ops.writes.idx.tolist()}) < len(t.buffers),
    "no duration": lambda t: (t.ops.duration == 0).any(),
}


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def keep(one: Any) -> None:
        found.append(one)

    keep()
    return found


def test_traces_have_what_is_easily_forgotten() -> None:
    found = drawn(traces(host=True), 100)
    for what, has in FORGOTTEN.items():
        assert sum(bool(has(trace)) for trace in found) >= (30 if what == "equal lifetimes" else 10), what


def test_lifetimes_shrink_well() -> None:
    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(lifetimes(), lambda found: any(end > found.n for end in found.end), settings=options)
    assert small == Lifetimes([0], [1], [3], 2)


@pytest.mark.slow
def test_traces_shrink_well() -> None:
    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(traces(), FORGOTTEN["streams"], settings=options)
    assert (len(small.buffers), small.n) == (1, 2)


@pytest.mark.slow
def test_requests_shrink_to_the_few_that_matter() -> None:
    def reuses(found: list[Allocate | Free]) -> bool:
        offsets = [offset for offset in play(faulty.FirstFit(), found) if offset is not None]
        return len(set(offsets)) < len(offsets)

    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(requests(max_size=8, max_requests=6), reuses, settings=options)
    assert small == [Allocate(0, 1), Free(0), Allocate(1, 1)]


def test_sizes_are_often_next_to_what_allocators_round_to() -> None:
    sizes = drawn(request_sizes(2**26), 300)
    beside = [size for size in sizes if any((size + d) % unit == 0 for unit in (256, 2**20) for d in (-1, 0, 1))]
    assert len(beside) > 60 and max(sizes) <= 2**26 and min(sizes) >= 1
    assert max(drawn(request_sizes(5), 50)) <= 5


def test_hypothesis_is_only_needed_where_it_is_used() -> None:
    code = """
import sys
sys.modules["hypothesis"] = None
from gpumem import testing
class Full:
    def allocate(self, size, *, stream=0):
        raise MemoryError
try:
    testing.check_allocator(Full)
except testing.ContractError as found:
    print(found.rule)
for what in ("traces", "allocator_machine"):
    try:
        getattr(testing, what)
    except ModuleNotFoundError as missing:
        print(missing)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == "service"
    assert all("needs Hypothesis: pip install 'gpumem[test]'" in line for line in ran.stdout.splitlines()[1:])


def test_public_names() -> None:
    from gpumem import testing

    for public in testing.__all__:
        assert getattr(testing, public).__doc__
        assert public in dir(testing)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = testing.nonsense
