"""Does `gpumem.testing` as a whole try every rule of its contracts, name what it has, and do without Hypothesis?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpumem.testing import PLANNER_RULES, RULES
from tests import faulty


def test_every_rule_is_broken_by_some_bug() -> None:
    assert set().union(*faulty.ALLOCATORS.values()) == set(RULES)
    assert set().union(*faulty.PLANNERS.values()) == set(PLANNER_RULES) - {"height"}  # no valid placement is too low


def test_hypothesis_is_only_needed_where_it_is_used() -> None:
    code = """
import sys
sys.modules["hypothesis"] = None
from gpumem import testing
class Full:
    def allocate(self, size, *, stream=0):
        raise MemoryError
try:
    testing.check_allocator(Full)
except testing.ContractError as found:
    print(found.rule)
for what in ("traces", "allocator_machine", "check_swap_planner"):
    try:
        getattr(testing, what)
    except ModuleNotFoundError as missing:
        print(missing)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == "service"
    assert all("needs Hypothesis: pip install 'gpumem[test]'" in line for line in ran.stdout.splitlines()[1:])


def test_public_names() -> None:
    from gpumem import testing

    for public in testing.__all__:
        assert getattr(testing, public).__doc__
        assert public in dir(testing)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = testing.nonsense
