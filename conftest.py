"""What needs PyTorch is looked at where it is there."""

from importlib.util import find_spec

NEED = ["src/gpumem/torch", "tests/pytorch", "docs/guides/fit.md", "docs/guides/run.md", "docs/guides/solver.md"]
collect_ignore = [] if find_spec("torch") else NEED


def pytest_report_header() -> str | None:
    """Say what is left out."""
    return f"no torch: {', '.join(collect_ignore)} are left out" if collect_ignore else None
