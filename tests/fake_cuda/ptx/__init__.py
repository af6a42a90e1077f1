"""PTX to C: what the fake driver runs kernels as. What is not known is refused, with its line."""

from .module import translate
from .text import Refused

__all__ = ["Refused", "translate"]
