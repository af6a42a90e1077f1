"""Node groups: each of one sign, as large as it was told, whole where it must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import bundled
from gpumem.jobs.waterwave import atoms, partition, pipeline
from gpumem.jobs.waterwave.node_groups import between
from gpumem.trace import Trace
from tests.jobs.waterwave.jobs_together import MACHINE
from tests.strategies import nets, steps, traces


@given(
    st.one_of(nets(), steps(streams=1), traces(streams=1)), st.integers(1, 200), st.sampled_from(["recorded", "depth"])
)
def test_groups_are_of_one_sign_and_profiled(trace: Trace, split: int, order: str):
    parts = partition(trace, MACHINE, split, order=order)
    load, ns = parts.trace.live_bytes(), MACHINE.durations(parts.trace)
    assert parts.cuts[0] == 0 and parts.cuts[-1] == trace.n and (np.diff(parts.cuts) > 0).all()
    for k in range(len(parts)):
        group = parts[k]
        assert group.net >= 0 if k < parts.angs else group.net <= 0
        assert group.ns == ns[group.first : group.last].sum()
        assert parts.held[k] + group.inside == max(load[group.first : group.last].max(), parts.held[k])
        left = [k == parts.angs - 1, k == len(parts) - 1]  # what is left over before the peak, and at the end
        within = between(parts.trace)[group.first + 1 : group.last] - parts.held[k]
        sign = 1 if k < parts.angs else -1
        assert any(left) or (abs(group.net) >= split and (sign * within < split).all())  # and no earlier op would do
    assert parts.held[0] == parts.held[-1] and parts.peak == max(load.max(), parts.held.max())


@given(nets(), st.data())
def test_ranges_are_kept_whole(trace: Trace, data: st.DataObject):
    first = data.draw(st.integers(0, trace.n - 1))
    last = data.draw(st.integers(first + 1, trace.n))
    parts = partition(trace, MACHINE, 1, order=data.draw(st.sampled_from(["recorded", "depth"])), keep=[(first, last)])
    group = np.repeat(np.arange(len(parts)), np.diff(parts.cuts))
    assert len(set(group[np.isin(parts.order, np.arange(first, last))].tolist())) == 1


def test_what_cannot_be_cut_is_told():
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match="split: 0 bytes is below 1"):
        partition(trace, MACHINE, 0)
    with pytest.raises(ValueError, match=r"keep: \[3, 3\) is no range of 40 ops"):
        partition(trace, MACHINE, 1, keep=[(3, 3)])
    with pytest.raises(ValueError, match="no ops"):
        partition(Trace.from_lifetimes([1], [0], [1]), MACHINE, 1)
    with pytest.raises(ValueError, match=r"order.*'deep'.*depth"):
        partition(trace, MACHINE, 1, order="deep")
    with pytest.raises(ValueError, match="no jobs"):
        pipeline([])
    with pytest.raises(ValueError, match=r"turns: \[0\] are not of the 2 jobs"):
        pipeline([partition(trace, MACHINE, 1)] * 2, turns=[0])


def test_atoms_keep_ranges_whole_and_have_a_cut_at_the_peak():
    trace = bundled("vgg16")
    parts = atoms(trace, MACHINE, 60, keep=[(100, 200)])
    assert not ((parts.cuts > 100) & (parts.cuts < 200)).any()
    assert parts.held[parts.angs] == parts.held.max() and len(parts) <= 62 <= 2 * len(atoms(trace, MACHINE, 60))
