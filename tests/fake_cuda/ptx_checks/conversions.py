"""Comparisons and conversions."""

from itertools import product
from math import isinf, isnan

import numpy as np

from .cases import BITS, FLOATS, REALS, case, limits
from .floats import flushed, saturated
from .integers import PLAIN, SIGNED, UNSIGNED

TESTS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
for (name, truth), t in product(TESTS.items(), SIGNED + UNSIGNED + PLAIN):
    if t[0] != "b" or name in ("eq", "ne"):
        case(f"setp.{name}.{t}", f"pred {t} {t}", truth)
for (name, as_), t in product({"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.items(), UNSIGNED):
    case(f"setp.{name}.{t}", f"pred {t} {t}", TESTS[as_])
for (name, truth), t in product(TESTS.items(), FLOATS):
    case(f"setp.{name}.{t}", f"pred {t} {t}", lambda a, b, truth=truth: not (isnan(a) or isnan(b)) and truth(a, b))
    case(f"setp.{name}u.{t}", f"pred {t} {t}", lambda a, b, truth=truth: isnan(a) or isnan(b) or truth(a, b))
for t in FLOATS:
    case(f"setp.num.{t}", f"pred {t} {t}", lambda a, b: not (isnan(a) or isnan(b)))
    case(f"setp.nan.{t}", f"pred {t} {t}", lambda a, b: isnan(a) or isnan(b))
for name, both in {"and": min, "or": max, "xor": lambda a, b: a != b}.items():
    case(f"setp.lt.{name}.s32", "pred s32 s32 pred", lambda a, b, p, both=both: both(a < b, bool(p)))
case("setp.eq.ftz.f32", "pred f32 f32", lambda a, b: flushed(a) == flushed(b))


def integer(x, t, source, function):
    """A float as an integer: clamped; NaN is 0, or the top bit alone where anything has 64 bits."""
    low, high = limits(t)
    if isnan(x):
        return 1 << BITS[t] - 1 if source == "f64" or BITS[t] == 64 else 0
    return (low if x < 0 else high) if isinf(x) else min(max(int(function(x)), low), high)


EVERY = [*SIGNED, *UNSIGNED, "s8", "u8"]
for t, s in product(EVERY, EVERY):
    case(f"cvt.{t}.{s}", f"{t} {s}", lambda a: a)
    case(f"cvt.sat.{t}.{s}", f"{t} {s}", lambda a, t=t: min(max(a, limits(t)[0]), limits(t)[1]))
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
LARGE = [*REALS, 2.0**31, 2.0**63, -(2.0**31), -(2.0**63), 2.0**64, 255.5, 1e10]
for (name, function), t, s in product(ROUND.items(), EVERY, FLOATS):
    case(f"cvt.{name}.{t}.{s}", f"{t} {s}", lambda a, f=function, t=t, s=s: integer(a, t, s, f), given=LARGE)
for (name, function), s in product(ROUND.items(), FLOATS):
    case(f"cvt.{name}.{s}.{s}", f"{s} {s}", function)
for t, s in product(FLOATS, EVERY):
    case(f"cvt.rn.{t}.{s}", f"{t} {s}", lambda a, t=t, s=s: FLOATS[t](a if s[0] == "s" else np.uint64(a)))
case("cvt.rn.f32.f64", "f32 f64", np.float32)
case("cvt.f64.f32", "f64 f32", lambda a: a)
case("cvt.sat.f32.f32", "f32 f32", saturated)
case("cvt.ftz.f32.f32", "f32 f32", flushed)
