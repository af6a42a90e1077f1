"""Where a run's mode is off and ops run all the same, nothing is lost."""

from __future__ import annotations

import torch

from gpumem.torch import managed
from tests.pytorch.own_ops import OWN, TABLE
from tests.pytorch.small_runs import HOW, away


def test_an_op_of_somebodys_own_may_use_what_is_no_argument_of_it() -> None:
    bare = OWN.looked_up(torch.ones(64))
    TABLE.sub_(1)
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 1
        away(run, x, TABLE)
        TABLE.sum()  # here again, with a copy on the host
        assert torch.equal(OWN.looked_up(x), bare)
        away(run, x, TABLE)  # what the op has written must not be lost
        assert torch.equal(x + TABLE, bare)
    TABLE.sub_(1)


def test_what_such_an_op_makes_is_held_while_it_is_there() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64)
        y = OWN.in_two(x)  # its result, and something beside it
        assert [row.peak for row in run.loop.report(open_row=True).iterations] == [x.nbytes + 2 * y.nbytes]


def test_what_such_an_op_touches_may_not_push_its_operands_out() -> None:
    with managed(850, **HOW, on_exit="host"):
        x = torch.ones(64) * 1
        assert torch.equal(OWN.looked_up(x), 1 + TABLE)
    TABLE.sub_(1)
