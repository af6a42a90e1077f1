"""Opcodes on integers and predicates."""

import struct

from .cases import BITS, case

SIGNED, UNSIGNED, PLAIN = ["s16", "s32", "s64"], ["u16", "u32", "u64"], ["b16", "b32", "b64"]
COUNTS = [0, 1, 7, 15, 16, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1]


def quotient(a, b, kind):
    if not b:
        return -1  # all ones, as hardware has it
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def rest(a, b, kind):
    return a - b * quotient(a, b, kind) if b else a


def left(a, n):
    return a << n if n < 64 else 0


def right(a, n):
    return a >> min(n, 64)


def field(a, start, length, kind):
    """bfe: bits above the last are copies of the sign, which is where the field or the number ends."""
    start, length, bits = start & 255, length & 255, BITS[kind]
    if not length:
        return 0
    known = a % (1 << bits)
    sign = known >> min(start + length - 1, bits - 1) & 1 if kind[0] == "s" else 0
    return sum((known >> start + i & 1 if i < length and start + i < bits else sign) << i for i in range(bits))


def inserted(a, b, start, length, kind):
    """bfi: the low bits of a over those of b."""
    start, length, bits = start & 255, length & 255, BITS[kind]
    for i in range(start, min(start + length, bits)):
        b = b & ~(1 << i) | (a >> i - start & 1) << i
    return b


def permuted(a, b, how):
    """prmt: four of eight bytes, or copies of their signs."""
    found = struct.pack("<II", a, b)
    picked = [(found[how >> 4 * i & 7], how >> 4 * i & 8) for i in range(4)]
    return int.from_bytes(bytes(255 * (byte >> 7) if sign else byte for byte, sign in picked), "little")


for t in SIGNED + UNSIGNED:
    n = BITS[t]
    case(f"add.{t}", f"{t} {t} {t}", lambda a, b: a + b)
    case(f"sub.{t}", f"{t} {t} {t}", lambda a, b: a - b)
    case(f"mul.lo.{t}", f"{t} {t} {t}", lambda a, b: a * b)
    case(f"mul.hi.{t}", f"{t} {t} {t}", lambda a, b, n=n: a * b >> n)
    case(f"mad.lo.{t}", f"{t} {t} {t} {t}", lambda a, b, c: a * b + c)
    case(f"mad.hi.{t}", f"{t} {t} {t} {t}", lambda a, b, c, n=n: (a * b >> n) + c)
    case(f"div.{t}", f"{t} {t} {t}", lambda a, b, t=t: quotient(a, b, t))
    case(f"rem.{t}", f"{t} {t} {t}", lambda a, b, t=t: rest(a, b, t))
    case(f"min.{t}", f"{t} {t} {t}", min)
    case(f"max.{t}", f"{t} {t} {t}", max)
    case(f"shr.{t}", f"{t} {t} u32", right, given=COUNTS)
    case(f"selp.{t}", f"{t} {t} {t} pred", lambda a, b, p: a if p else b)
    if n < 64:
        wide = f"{t[0]}{2 * n}"
        case(f"mul.wide.{t}", f"{wide} {t} {t}", lambda a, b: a * b)
        case(f"mad.wide.{t}", f"{wide} {t} {t} {wide}", lambda a, b, c: a * b + c)
    if n > 16:
        case(f"bfe.{t}", f"{t} {t} u32 u32", lambda a, s, z, t=t: field(a, s, z, t), given=COUNTS)
for t in SIGNED:
    case(f"neg.{t}", f"{t} {t}", lambda a: -a)
    case(f"abs.{t}", f"{t} {t}", abs)
for t in PLAIN:
    case(f"and.{t}", f"{t} {t} {t}", lambda a, b: a & b)
    case(f"or.{t}", f"{t} {t} {t}", lambda a, b: a | b)
    case(f"xor.{t}", f"{t} {t} {t}", lambda a, b: a ^ b)
    case(f"not.{t}", f"{t} {t}", lambda a: ~a)
    case(f"cnot.{t}", f"{t} {t}", lambda a: not a)
    case(f"shl.{t}", f"{t} {t} u32", left, given=COUNTS)
    case(f"mov.{t}", f"{t} {t}", lambda a: a)
for t in PLAIN[1:]:
    n = BITS[t]
    case(f"popc.{t}", f"u32 {t}", lambda a: a.bit_count())
    case(f"clz.{t}", f"u32 {t}", lambda a, n=n: n - a.bit_length())
    case(f"brev.{t}", f"{t} {t}", lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))
    case(f"bfi.{t}", f"{t} {t} {t} u32 u32", lambda a, b, s, z, t=t: inserted(a, b, s, z, t), given=COUNTS)
case("prmt.b32", "b32 b32 b32 u32", permuted, given=[0x3210, 0x7654, 0x0123, 0xFEDC, 0x8888, 0xBA98])
case("shf.l.wrap.b32", "b32 b32 b32 u32", lambda a, b, n: (b << 32 | a) << (n & 31) >> 32, given=COUNTS)
case("shf.r.wrap.b32", "b32 b32 b32 u32", lambda a, b, n: (b << 32 | a) >> (n & 31), given=COUNTS)
for name, truth in {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}.items():
    case(f"{name}.pred", "pred pred pred", truth)
case("not.pred", "pred pred", lambda a: 1 - a)
