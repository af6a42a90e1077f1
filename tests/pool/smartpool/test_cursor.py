"""How a position in the table is kept, lost and found again, by hand-worked logs of what deviates from the plan."""

from __future__ import annotations

import random

import pytest

from gpumem.pool.smartpool import Deviation, online as smartpool
from gpumem.pool.smartpool._cursor import LOST, Cursor
from gpumem.pool.smartpool._iteration import GRAM
from tests.pool.smartpool.judge import STEP, Judge, planned, small
from tests.pool.smartpool.programs import SIZES, perturb, play, unroll


def test_another_size_is_served_by_the_fallback_and_reported() -> None:
    judge = planned()
    judge.run(STEP)
    assert judge.run("a8 b5 -a c6 -b -c") == [10, 22, 10]  # b goes behind the region [10, 22)
    assert judge.pool.statistics.deviations == {"size": 1}
    # request 1 + 3 * 6 came before, then a: b is request 20, due at position 1
    assert [*judge.pool.statistics.recent] == [Deviation("size", 20, 1, 5)]
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.pool.statistics.deviations == {"size": 1}


@pytest.mark.parametrize(
    "script, offsets, deviations",
    [
        # x comes where -a is due; its free is no part of the plan either
        ("a8 b4 x9 -a c6 -b -x -c", [10, 18, 22, 10], {"extra": 2}),
        # x comes where b is due and takes its place; then b comes late, and x has no place any more
        ("a8 x9 b4 -a c6 -b -x -c", [10, 22, 18, 10], {"size": 1, "late": 1, "extra": 1}),
        # b does not come: c is found two requests later, as its size says, and passes over -b, which is not there
        ("a8 -a c6 -c", [10, 10], {"skipped": 1}),
        # c before -a: a is overdue when c comes, which therefore goes behind the region; -a comes late
        ("a8 b4 c6 -a -b -c", [10, 18, 22], {"skipped": 1, "taken": 1, "late": 1}),
        # b before a: a is passed over and comes late, both where they belong
        ("b4 a8 -a c6 -b -c", [18, 10, 10], {"skipped": 1, "late": 1}),
        # -c before -b: passed over, late
        ("a8 b4 -a c6 -c -b", [10, 18, 10], {"skipped": 1, "late": 1}),
    ],
)
def test_after_a_deviation_the_rest_of_the_iteration_is_as_planned(
    script: str, offsets: list[int], deviations: dict[str, int]
) -> None:
    judge = planned()
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.run(script) == offsets
    assert judge.pool.statistics.deviations == deviations
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.pool.statistics.deviations == deviations


def test_what_is_due_goes_before_what_may_come_late() -> None:
    step = "a8 b4 -a c8 -b -c"
    judge = Judge(small())
    judge.run(f"w10 {step} {step} {step}")
    judge.run("b4 c8 -b -c")  # a does not come; its free is not there; the next 8 bytes are c's
    assert judge.pool.statistics.deviations == {"skipped": 1}


def test_a_free_long_before_it_is_due_leaves_the_position() -> None:
    # b is freed seven requests early, beyond the window; the table's own free is passed over later
    loops = "c2 -c d1 -d e3 -e f5 -f "
    step = f"a8 b4 {loops} -b -a"
    judge = Judge(small())
    judge.run(f"w10 {step} {step} {step}")
    before = judge.pool.statistics.hits
    judge.run(f"a8 b4 -b {loops} -a")
    assert judge.pool.statistics.deviations == {"early": 1}
    judge.run(step)
    assert judge.pool.statistics.hits == before + 12
    assert judge.pool.statistics.deviations == {"early": 1}


def test_bytes_of_a_block_that_lives_longer_go_to_nobody() -> None:
    judge = planned()
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.run("a8 b4 -a c6 -b") == [10, 18, 10]  # c lives on over the boundary, on [10, 16)
    assert judge.run("x8 y4 -x z6 -y") == [22, 18, 22]  # x and z would lie on it
    counts = judge.pool.statistics.deviations
    assert counts == {"skipped": 1, "taken": 2}  # -c was passed over
    judge.run("-z -c")  # the free of z is due; c is an old acquaintance, but no buffer of the plan any more
    assert counts == {"skipped": 1, "taken": 2, "extra": 1}
    assert judge.run(STEP) == [10, 18, 10]


def test_lost_and_found_again() -> None:
    words = [f"{name}{size} -{name}" for name, size in zip("abcdefgh", range(11, 19))]
    step = " ".join(words)
    judge = Judge(small())
    judge.run(f"w100 {step} {step} {step}")
    assert judge.pool.statistics.hits == 8
    for k in range(2 * LOST):  # one odd iteration: nothing of it is in the plan
        judge.run(f"x{50 + k} -x")
    assert judge.pool.statistics.deviations["lost"] > 0
    assert judge.pool.statistics.hits == 8
    judge.run(step)
    assert judge.pool.statistics.hits == 8 + 8 - GRAM // 2  # a to d and their frees tell where it is
    total = judge.pool.statistics.deviations.total()
    assert len(set(judge.run(step))) == 1  # all at the bottom of the region
    assert judge.pool.statistics.hits == 8 + 4 + 8
    assert judge.pool.statistics.deviations.total() == total
    assert judge.pool.statistics.plans == 1


class Thorough(Cursor):
    """Looks at every request as if it might not be as planned."""

    def malloc_as_planned(self, size: int, stream: int) -> None:
        return None

    def free_as_planned(self, held: object) -> bool:
        return False


@pytest.mark.parametrize("seed", range(100))
def test_the_short_way_of_a_request_as_planned_comes_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    order = [(kind, b) for b in range(rng.randint(1, 24)) for kind in "mf"]
    rng.shuffle(order)
    iteration = order, [rng.choice(SIZES) for _ in order[::2]]
    odd = perturb(rng.randrange, unroll(iteration, 12, "odd"), rng.choice([2, 5, 12, 40]))
    program = [*unroll(iteration, 4, "before"), *odd, *unroll(iteration, 6, "after")]
    streams, found = rng.randint(1, 2), []
    for cursor in (Cursor, Thorough):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smartpool, "Cursor", cursor)
            judge, drawn = Judge(small(min_length=1)), random.Random(seed)
            told = []
            for request in program:
                play(judge, [request], lambda k, drawn=drawn: drawn.randrange(streams))
                now = judge.pool._cursor
                where = None if now is None else (now.position, now.streak, now._since, now._trouble, [*now._recent])
                told.append((judge.at.get(request[1]), where))
            found.append((told, judge.pool.statistics, judge.waits))
    assert found[0] == found[1]
