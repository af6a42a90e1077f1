"""The command line: arguments in, text out. One file a command, each adds its arguments and runs; `main` runs them.

`common` is what several of them say. Begin with `plan`, with `common/planning`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.cli.main import main as main

lazy_interface(__name__)
