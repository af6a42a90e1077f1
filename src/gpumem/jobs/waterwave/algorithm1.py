"""Waterwave's algorithm 1 as it is printed: which node group runs on which stream, in which slot."""

from __future__ import annotations

from collections.abc import Sequence

Row = list[tuple[int, int] | None]  # one stream: slot -> (job, group), counted from 0; None where it idles


def overlap(limit: int, peak: int, split: int, angs: Sequence[int]) -> int:
    """Return how many groups of the second job run beside those of the first that still take memory: the paper's `p`.

    Parameters
    ----------
    limit, peak, split : int
        Bytes: all there are, the first job's peak, a group's.
    angs : sequence of int
        Allocation groups of the first job and of the second.

    Examples
    --------
    >>> overlap(limit=100, peak=60, split=10, angs=[5, 5]), overlap(limit=60, peak=60, split=10, angs=[5, 5])
    (3, 0)
    """
    return max(0, min((limit - peak) // split - 1, *angs[:2]))


def algorithm1(groups: Sequence[int], angs: Sequence[int], p: int = 0) -> tuple[Row, Row]:
    """Return the paper's two vectors, as printed.

    Parameters
    ----------
    groups, angs : sequence of int
        Node groups of each job, and how many of them are of allocation.
    p : int
        See `overlap`.

    Returns
    -------
    av, dv
        The two streams. Those of one slot are a pair.

    Notes
    -----
    **It breaks the order of a job's groups**: a later one may land in an earlier slot, or in the same one, as here
    where the second job has more groups of allocation than the first has of the other kind. `pipeline` is mended.

    Examples
    --------
    >>> av, dv = algorithm1([6, 4, 4], [3, 2, 2])  # the paper's figure 5
    >>> av[3:5], dv[3:5]
    ([(1, 0), (1, 1)], [(0, 3), (0, 4)])
    >>> av, dv = algorithm1([4, 4], [2, 3])
    >>> av.index((1, 2)), dv.index((1, 3))
    (4, 4)

    References
    ----------
    Shi et al., Waterwave, algorithm 1; read with exclusive loops and one counter a loop.
    """
    ranked = sorted(range(len(groups)), key=lambda j: -groups[j])
    av: dict[int, tuple[int, int]] = {}
    dv: dict[int, tuple[int, int]] = {}
    first = angs[ranked[0]]
    offset, idx1, idx2 = first - p, 0, first
    for place, job in enumerate(ranked):
        s = p if place == 1 else 0
        for i in range(s):
            dv[offset] = job, i
            offset += 1
        for i in range(s, angs[job]):
            av[idx1] = job, i
            idx1 += 1
        for i in range(angs[job], groups[job]):
            if place == len(ranked) - 1 and idx2 > idx1:
                av[idx1] = job, i
                idx1 += 1
            else:
                dv[idx2] = job, i
                idx2 += 1
    slots = max([*av, *dv], default=-1) + 1
    return [av.get(k) for k in range(slots)], [dv.get(k) for k in range(slots)]
