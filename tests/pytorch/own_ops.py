"""Ops of somebody's own, by names that say other things than they do; `looked_up` uses a table that is no argument."""

from __future__ import annotations

import torch

TABLE = torch.arange(64.0)
_LIBRARY = torch.library.Library("gpumem_tests", "DEF")
for line, kernel in (
    ("twice_like(Tensor x) -> Tensor", lambda x: x * 2),
    ("new_zeros(Tensor x) -> Tensor", lambda x: x * 2),
    ("view(Tensor(a) x) -> Tensor(a)", lambda x: x.mul_(1)),
    ("check(Tensor x) -> ()", lambda x: None),
    ("count(Tensor x) -> int", lambda x: int(x.sum())),
):
    _LIBRARY.define(line)
    _LIBRARY.impl(line.partition("(")[0], kernel, "CPU")
_LIBRARY.define("looked_up(Tensor x) -> Tensor")
_LIBRARY.impl("looked_up", lambda x: (TABLE.add_(1), x + TABLE)[1], "CompositeExplicitAutograd")
_LIBRARY.define("in_two(Tensor x) -> Tensor")
_LIBRARY.impl("in_two", lambda x: (x + 1, x * 2)[1], "CompositeExplicitAutograd")
OWN = torch.ops.gpumem_tests
