"""What is placed: buffers with lifetimes that are intervals, whatever they come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.rewriting import rewritten
from gpumem.cli.common.progress import tell
from gpumem.testing.perfect import perfect
from gpumem.trace import Trace

SUFFIXES = (".csv", ".csv.gz", ".json", ".json.gz")
PERFECT = "perfect"


@dataclass(frozen=True, slots=True)
class Instance:
    """A bare trace without arcs, host buffers and buffers of no bytes.

    `family`: whose mean it counts in. `wrapped`: buffers that wrapped around the end of the iteration.
    """

    trace: Trace
    family: str
    wrapped: int = 0

    @classmethod
    def of(cls, trace: Trace, family: str, name: str = "") -> Instance:
        """Keep the device buffers; a lifetime that wraps becomes the whole iteration, as peers take intervals only.

        >>> Instance.of(Trace.from_lifetimes([4, 2], [1, 0], [4, 1], n=3), "arcs").trace.peak_live_bytes
        6
        """
        b, n = trace.buffers, trace.n
        keep = ~b.host & (b.size > 0)
        size, start, end = b.size[keep], b.start[keep], b.end[keep]
        wraps = end > n
        start, end = np.where(wraps, 0, start), np.where(wraps, n, end)
        bare = Trace.from_lifetimes(size, start, end, n=n, name=name or trace.name)
        return cls(bare, family, int(wraps.sum()))

    @property
    def digest(self) -> str:
        """What tells it from another of that name."""
        b = self.trace.buffers
        return hashlib.sha256(np.stack([b.size, b.start, b.end]).tobytes()).hexdigest()[:16]


def in_folder(folder: str) -> list[Path]:
    """Return the traces and CSVs in a folder and those below it."""
    found = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))
    if not found:
        raise ValueError(f"--instances: {folder!r} is no folder with traces or .csv files")
    return found


def of_file(trace: Trace, family: str, limits: list[int]) -> Iterator[Instance]:
    """Yield a trace rewritten for each limit, in % of its peak live bytes; as it is where there are none, and for 100.

    A bare instance has nothing to rewrite, and comes as it is.
    """
    if not len(trace.ops) or not limits:
        yield Instance.of(trace, family)
        return
    for percent in limits:
        if percent == 100:
            yield Instance.of(trace, family)
        elif (made := rewritten(trace, percent)) is not None:
            yield Instance.of(made, "rewritten", f"{trace.name}@{percent}")
        else:
            tell(f"{trace.name}: AutoSwap has no plan for {percent} % of the peak live bytes: left out")


def generated(text: str) -> list[Instance]:
    """Return instances with a known optimum: `30,60:2` is two of 30 pieces and two of 60, seeds 0 and 1.

    >>> [one.trace.name for one in generated("8,9:2")]
    ['perfect8_0', 'perfect8_1', 'perfect9_0', 'perfect9_1']
    """
    pieces, _, seeds = text.partition(":")
    counts, count = whole(pieces, "--perfect", 100_000), whole(seeds or "1", "--perfect", 1000)
    if len(count) != 1:
        raise ValueError(f"--perfect: {text!r:.60} is no PIECES[,PIECES]:SEEDS, as 30,60:2")
    return [Instance(perfect(n, seed=seed), PERFECT) for n in counts for seed in range(count[0])]


def whole(text: str, what: str, most: int) -> list[int]:
    """Read a list of whole numbers from 1 to `most`."""
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if not (part.isascii() and part.isdecimal() and 1 <= int(part) <= most):
            raise ValueError(f"{what}: {part!r:.40} is not in 1..{most}")
    return list(dict.fromkeys(map(int, found)))


def told_apart(instances: list[Instance]) -> list[Instance]:
    """Return instances of which no two have one name.

    >>> [one.trace.name for one in told_apart(generated("8:1") * 2)]
    ['perfect8_0', 'perfect8_0 (2)']
    """
    found: list[Instance] = []
    names: Counter[str] = Counter()
    for one in instances:
        name = one.trace.name
        names[name] += 1
        new = name if names[name] == 1 else f"{name} ({names[name]})"
        found.append(replace(one, trace=replace(one.trace, name=new)))
    return found
