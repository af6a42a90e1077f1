"""`python -m gpumem`."""

from gpumem.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
