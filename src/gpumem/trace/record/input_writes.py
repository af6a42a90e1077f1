"""The SNU thesis' pattern test: an iteration lies between two writes of an input (its figure 6)."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace.columns import int_column


class Pattern(NamedTuple):
    """Records `[start, start + length)`, which the next `length` repeat."""

    start: int
    length: int


@strict
def pattern(records: Sequence[Hashable], writes: Sequence[int]) -> Pattern | None:
    """Return the first pattern that the SNU thesis' test finds, or None.

    Parameters
    ----------
    records : sequence
        What ran, in order. Two records are the same where they are equal: in the thesis the op, its tensors and what
        else it was called with.
    writes : sequence of int
        The records that write an input to the device, in order. The test runs at each, before it counts.

    Returns
    -------
    Pattern or None
        For the first write `c`, and then the earliest write `i` before it with `c - i` even, for which
        `records[i:i+P] == records[c-P:c]`, where `P = (c - i) / 2`.

    Raises
    ------
    ValueError
        A write that is no index of a record, or comes before the one before it.

    Notes
    -----
    O(w^2 n) at worst for w writes among n records; mostly O(w^2). `PatternStream` takes them one by one.

    What the printed test gets wrong or misses, and `gpumem.trace.record.period` does not, but where said:

    - An odd `c - i` is not excluded. Halved to a whole number it leaves a record out in the middle: `W a b W a`
      before the next `W` passes for `W a` twice. We ask for an even one.
    - An input that is written in slices, three writes in a row, is a pattern of one record. Nothing asks whether what
      is found is a whole iteration. Micro-steps that accumulate gradients pass as well, in both tests.
    - Tensors are compared by what they are, so a program that makes new ones in each iteration never repeats.
      `gpumem.trace.record.period` compares how far back a block was made and used.
    - An input that stays on the device is never written, so nothing is tested at all.
    - It needs the write that begins the third equal iteration; `gpumem.trace.record.period` the end of the second,
      or of the first ops of the third.

    It returns no multiple of a pattern that begins at a write: two repetitions of that have ended at an earlier write.
    Whether the loop over `i` ends with the first match cannot be read; if it goes on, the last `i` counts, and nothing
    is found unless that is the right one.

    Examples
    --------
    >>> step = ["write x", "forward", "backward", "update"]
    >>> pattern(["make w", *3 * step], [1, 5, 9])
    Pattern(start=1, length=4)

    References
    ----------
    J. Lee's thesis, Seoul National University: figure 6, section 5.4.
    """
    at = int_column(writes, "writes")
    if len(at) and (min(at[0], len(records) - 1 - at[-1]) < 0 or (np.diff(at) <= 0).any()):
        raise ValueError(f"writes: {list(writes)!r:.60} are no ascending indices of {len(records)} records")
    stream, inputs = PatternStream(), {*at.tolist()}
    for number, record in enumerate(records):
        if number in inputs and (period := stream.at_write()) is not None:
            return period
        stream.push(record, number in inputs)
    return None


class PatternStream:
    """The same test while the program runs: `at_write` before an input is written, `push` for each record.

    Examples
    --------
    >>> stream = PatternStream()
    >>> for record in ["make w", *2 * ["write x", "forward", "backward", "update"]]:
    ...     stream.push(record, record == "write x")
    >>> stream.at_write()
    Pattern(start=1, length=4)
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._code, self._writes = array("q"), array("q")

    def push(self, record: Hashable, writes: bool) -> None:
        """Take the next record, which `writes` an input or does not."""
        if writes:
            self._writes.append(len(self._code))
        self._code.append(self._known.setdefault(record, len(self._known)))

    def at_write(self) -> Pattern | None:
        """Return the pattern that ends before the next record, which is to write an input."""
        if not self._writes:
            return None
        code, at = np.frombuffer(self._code, np.int64), np.frombuffer(self._writes, np.int64)
        number = len(code)
        at = at[(number - at) % 2 == 0]
        half = (number + at) // 2
        alike = (code[at] == code[half]) & (code[half - 1] == code[-1])
        for earlier, middle in zip(at[alike].tolist(), half[alike].tolist()):
            if np.array_equal(code[earlier:middle], code[middle:]):
                return Pattern(earlier, middle - earlier)
        return None
