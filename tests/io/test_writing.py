"""Writing a trace: its name says the format, it or a machine how long ops take; a failure leaves the old file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem.io import bundled, load, read, write
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.files import leftovers


def test_a_failing_trace_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"old")
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match=r"t.json.gz: 40 ops, but 3 durations"):
        write(path, trace, duration=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="placement: 2 offsets, but trace 'mlp3_b128_sgd' has 35 buffers"):
        write(path, trace, Placement(np.array([0, 1]), 5), duration=np.zeros(40, np.int64))
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_durations_come_from_the_trace_a_machine_or_the_caller(tmp_path: Path) -> None:
    path, trace, machine = tmp_path / "t.json.gz", bundled("mlp3"), tiny_machine()
    with pytest.raises(ValueError, match=r"t.json.gz: op 0 \(.*\) was not measured.*machine='v100' would"):
        write(path, trace)
    assert not path.exists()
    write(path, trace, machine=machine)
    assert load(path).meta["machine"] == machine.name
    measured = read(path)
    assert measured.ops.duration.tolist() == machine.durations(trace).tolist()
    write(path, measured, best_fit(measured))
    assert read(path).ops.duration.tolist() == measured.ops.duration.tolist()
    write(path, measured, duration=[7] * 40)
    assert read(path).ops.duration.tolist() == [7] * 40
    for wrong, message in (([7], "40 ops, but 1 durations"), ([-7] * 40, r"duration\[0\]: -7 ns is not in")):
        with pytest.raises(ValueError, match=message):
            write(path, measured, duration=wrong)


@pytest.mark.parametrize("name", ["t", "t.txt", "t.jsn", "t.json.zip", "t.gz", ".json", "t.csv.bz2"])
def test_a_suffix_that_is_unknown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"suffix '.*' is unknown; there are .json, .json.gz, .csv, .csv.gz"):
        write(tmp_path / name, bundled("mlp3"), machine="v100")
    assert not any(tmp_path.iterdir())


def test_a_csv_is_written_by_its_suffix_and_has_no_ops(tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    for name in ("t.csv", "t.csv.gz", "T.CSV"):
        write(tmp_path / name, trace, best_fit(trace, alignment=1))
        found = load(tmp_path / name)
        assert found.trace.buffers.size.tolist() == [4, 2] and found.placement is not None
    with pytest.raises(ValueError, match=r"t.csv: machine: a CSV has no ops and keeps none of it; .json would do"):
        write(tmp_path / "t.csv", trace, machine="v100")
    (tmp_path / "o.csv").write_text("id,lower,upper,size,Offsets\na,0,1,4,0\n")
    with pytest.raises(ValueError, match="line 1: column 'Offsets' is unknown; did you mean 'offset'"):
        read(tmp_path / "o.csv")
