"""`python -m benchmarks SUITE ...`: planners and allocators against bounds and the papers."""

from benchmarks.suites import parser
from gpumem.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main(of=parser))
