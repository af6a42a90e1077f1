"""What an op was called with, as text that a trace keeps of it (its attribute `signature`) and others read.

One word an argument: a tensor as `float32[64,3,7,7]`, with its strides where they are not those of a contiguous one
(`float32[10,4]@1,10`: transposed), a list as `(1 1)`, a number, a word; `-` stands for nothing, `name=` before what was
given by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SIGNATURE = "signature"  # the attribute's name
_WORD = re.compile(
    r"(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,]*)\](?:@(?P<strides>[\d,]*))?|(?<![\w:])(?P<number>-?\d[\d.e+-]*)(?![\w.])"
)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a call: its type, dimensions, and strides in elements where it is not contiguous."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return text if self.strides is None else f"{text}@{','.join(map(str, self.strides))}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors and the numbers of a call, in order; lists are flat."""

    operands: tuple[Operand, ...]
    numbers: tuple[float, ...]


def parse(text: str) -> Signature:
    """Read a signature; what is neither a tensor nor a number is passed over.

    Notes
    -----
    O(length of the text).

    Examples
    --------
    >>> found = parse("float32[8,4] float32[4,10]@1,4 (1 1) - approximate=tanh beta=0.5")
    >>> [str(operand) for operand in found.operands], found.numbers
    (['float32[8,4]', 'float32[4,10]@1,4'], (1.0, 1.0, 0.5))
    """
    operands, numbers = [], []
    for word in _WORD.finditer(text):
        if word["number"] is not None:
            numbers.append(float(word["number"]))
        else:
            strides = None if word["strides"] is None else _whole(word["strides"])
            operands.append(Operand(word["dtype"], _whole(word["shape"]), strides))
    return Signature(tuple(operands), tuple(numbers))


def _whole(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are those of a tensor in order, without gaps; axes of length 1 may have any.

    >>> contiguous((2, 3), (3, 1)), contiguous((2, 3), (1, 2)), contiguous((2, 1), (1, 7))
    (True, False, True)
    """
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True
