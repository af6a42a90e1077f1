"""What an instruction is tried with, and what it should give."""

from dataclasses import dataclass
from itertools import product
from math import inf, isfinite, isnan, nan

import numpy as np

BITS = {kind + str(bits): bits for kind in "usb" for bits in (8, 16, 32, 64)} | {"f32": 32, "f64": 64, "pred": 1}
SIGNED, UNSIGNED, PLAIN = (["s16", "s32", "s64"], ["u16", "u32", "u64"], ["b16", "b32", "b64"])
COUNTS = [0, 1, 7, 15, 16, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1]
REALS = [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 0.5, 1.5, 3.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, -3.4e38, inf, -inf, nan]
FLOATS = {"f32": np.float32, "f64": np.float64}


def wrap(x, kind):
    """An integer as the type holds it."""
    x %= 1 << BITS[kind]
    return x - (1 << BITS[kind]) if kind[0] == "s" and x >> BITS[kind] - 1 else x


def limits(kind):
    top = 1 << BITS[kind] - (kind[0] == "s")
    return -top if kind[0] == "s" else 0, top - 1


def values(kind, few=False):
    """Edge values of a type."""
    if kind == "pred":
        return [0, 1]
    if kind in FLOATS:
        return [*REALS[::2], nan] if few else REALS
    low, high = limits(kind)
    some = [low, high, 0, 1, 2, high - 1, 0x5A5A5A5A5A5A5A5A, 7, -1, low + 1, 1 << BITS[kind] // 2]
    return sorted({wrap(x, kind) for x in (some[:6] if few else some)})


@dataclass
class Case:
    """One instruction: its types, the result's first, and what it should give; `near`: how far off it may be."""

    opcode: str
    kinds: str
    expected: object
    near: float = 0.0
    given: object = None  # the values of the last operand, if not its type's


CASES = []


CASES = []


def case(opcode, kinds, expected, **more):
    """Add one to those that are tried."""
    CASES.append(Case(opcode, kinds, expected, **more))


def as_held(x, kind):
    return float(np.float32(x)) if kind == "f32" else x


def tried(of):
    """All operands that a case is tried with."""
    _, *kinds = of.kinds.split()
    each = [values(kind, few=len(kinds) > 2) for kind in kinds]
    if of.given:
        each[-1] = of.given
        if len(kinds) > 2 and kinds[-2] == "u32":
            each[-2] = of.given
    return [tuple(as_held(x, kind) for x, kind in zip(row, kinds)) for row in product(*each)]


def same(got, want, near):
    if isinstance(got, float):
        if isnan(want) or isnan(got):
            return isnan(want) and isnan(got)
        if near and isfinite(want):
            return abs(got - want) <= near * max(abs(want), 1e-38)
        return got == want and np.signbit(got) == np.signbit(want)
    return got == want
