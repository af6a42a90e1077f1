"""Trace files in and out: recorded PyTorch traces, `gpumem.trace/1`, minimalloc's CSV, Chrome traces.

Begin with `reading`, which knows the format by the content: gzipped or not, JSON or CSV. Each format has a module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.io import chrome as chrome
    from gpumem.io import minimalloc as minimalloc
    from gpumem.io.files import replacing as replacing
    from gpumem.io.files import staged as staged
    from gpumem.io.files import write_text as write_text
    from gpumem.io.reading import BUNDLED as BUNDLED
    from gpumem.io.reading import Loaded as Loaded
    from gpumem.io.reading import bundled as bundled
    from gpumem.io.reading import bundled_path as bundled_path
    from gpumem.io.reading import load as load
    from gpumem.io.reading import read as read
    from gpumem.io.tracefile import write as write

face(__name__)
