"""Opcodes on floats."""

import struct
from fractions import Fraction
from math import isfinite, isnan, nan

import numpy as np

from .cases import FLOATS, case


def flushed(x):
    return np.copysign(np.float32(0), x) if abs(x) < 2.0**-126 else x


def saturated(x):
    return min(max(x, 0.0), 1.0) + 0.0 if x == x else 0.0


def number(i):
    """The i-th f32 number, counted from 0; the one after the last as if there were more."""
    return Fraction(struct.unpack("<f", struct.pack("<I", i))[0]) if i < INFINITE else Fraction(2) ** 128


INFINITE = 0x7F800000


def nearest(way, exact):
    """A fraction rounded to f32: to the (n)earest, or towards (z)ero, (m)inus or (p)lus infinity."""
    size, low, high = abs(exact), 0, INFINITE
    while high - low > 1:  # bisect for the largest number that is not larger
        middle = (low + high) // 2
        low, high = (middle, high) if number(middle) <= size else (low, middle)
    before, after = size - number(low), number(low + 1) - size
    up = {"n": (before, low & 1) > (after, 0), "z": False, "m": exact < 0, "p": exact > 0}[way] and before > 0
    found = struct.unpack("<f", struct.pack("<I", low + up))[0]
    return -found if exact < 0 else found


def rounded(way, *parts):
    """The sum of products of f32 numbers, rounded once; what is not finite, and zeros, as IEEE has them."""
    each = [np.prod(np.float64(part)) for part in parts]
    if not all(isfinite(x) for part in parts for x in part):
        return float(np.sum(each))
    exact = sum(Fraction(float(part[0])) * Fraction(float(part[-1]) if len(part) > 1 else 1) for part in parts)
    if exact:
        return nearest(way, exact)
    signs = {bool(np.signbit(x)) for x in each}  # the products are zeros, or cancel
    return -0.0 if signs == {True} or (len(signs) == 2 and way == "m") else 0.0


def smaller(a, b):
    return b if isnan(a) else a if isnan(b) else min(a, b, key=lambda x: (x, not np.signbit(x)))


def larger(a, b):
    return b if isnan(a) else a if isnan(b) else max(a, b, key=lambda x: (x, not np.signbit(x)))


for t, f in FLOATS.items():
    for dot in ("", ".rn"):
        case(f"add{dot}.{t}", f"{t} {t} {t}", lambda a, b, f=f: f(a) + f(b))
        case(f"sub{dot}.{t}", f"{t} {t} {t}", lambda a, b, f=f: f(a) - f(b))
        case(f"mul{dot}.{t}", f"{t} {t} {t}", lambda a, b, f=f: f(a) * f(b))
    case(f"div.rn.{t}", f"{t} {t} {t}", lambda a, b, f=f: f(a) / f(b))
    case(f"sqrt.rn.{t}", f"{t} {t}", lambda a, f=f: np.sqrt(f(a)))
    case(f"rcp.rn.{t}", f"{t} {t}", lambda a, f=f: f(1) / f(a))
    case(f"neg.{t}", f"{t} {t}", lambda a: -a)
    case(f"abs.{t}", f"{t} {t}", abs)
    case(f"min.{t}", f"{t} {t} {t}", smaller)
    case(f"max.{t}", f"{t} {t} {t}", larger)
    case(f"min.NaN.{t}", f"{t} {t} {t}", lambda a, b: nan if isnan(a) or isnan(b) else smaller(a, b))
    case(f"max.NaN.{t}", f"{t} {t} {t}", lambda a, b: nan if isnan(a) or isnan(b) else larger(a, b))
    case(f"copysign.{t}", f"{t} {t} {t}", lambda a, b: np.copysign(b, a))
    case(f"selp.{t}", f"{t} {t} {t} pred", lambda a, b, p: a if p else b)
    case(f"mov.{t}", f"{t} {t}", lambda a: a)
for way in "nzmp":
    case(f"fma.r{way}.f32", "f32 f32 f32 f32", lambda a, b, c, way=way: rounded(way, (a, b), (c,)))
    if way != "n":
        case(f"add.r{way}.f32", "f32 f32 f32", lambda a, b, way=way: rounded(way, (a,), (b,)))
        case(f"sub.r{way}.f32", "f32 f32 f32", lambda a, b, way=way: rounded(way, (a,), (-b,)))
        case(f"mul.r{way}.f32", "f32 f32 f32", lambda a, b, way=way: rounded(way, (a, b)))
case("fma.rn.f64", "f64 f64 f64 f64", lambda a, b, c: a * b + c, near=1e-15)
case("add.ftz.f32", "f32 f32 f32", lambda a, b: flushed(np.float32(flushed(a)) + np.float32(flushed(b))))
case("mul.ftz.f32", "f32 f32 f32", lambda a, b: flushed(np.float32(flushed(a)) * np.float32(flushed(b))))
case("add.sat.f32", "f32 f32 f32", lambda a, b: saturated(np.float32(a) + np.float32(b)))
case("fma.rn.sat.f32", "f32 f32 f32 f32", lambda a, b, c: saturated(rounded("n", (a, b), (c,))))
APPROXIMATE = {
    "ex2.approx.ftz": np.exp2,
    "ex2.approx": np.exp2,
    "lg2.approx": np.log2,
    "rcp.approx.ftz": lambda x: 1 / x,
    "rsqrt.approx": lambda x: 1 / np.sqrt(x),
    "sqrt.approx": np.sqrt,
    "tanh.approx": np.tanh,
}
for name, function in APPROXIMATE.items():
    ftz = flushed if "ftz" in name else lambda x: x
    case(f"{name}.f32", "f32 f32", lambda a, f=function, z=ftz: z(np.float32(f(np.float64(z(a))))), near=1e-6)
for name, function in {"sin.approx": np.sin, "cos.approx": np.cos}.items():
    case(f"{name}.f32", "f32 f32", function, near=1e-6, given=[0.0, 0.5, -2.5, 3.0, nan])
for name in ("div.approx", "div.full"):
    case(f"{name}.f32", "f32 f32 f32", lambda a, b: np.float32(a) / np.float32(b), near=1e-6)
