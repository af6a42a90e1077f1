"""`python -m gpumem.torch.zoo`."""

from gpumem.torch.zoo.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
