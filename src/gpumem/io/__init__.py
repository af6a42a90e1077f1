"""Trace files in and out: recorded PyTorch traces, `gpumem.trace/1`, minimalloc's CSV, Chrome traces.

Begin with `reading`, which knows the format by the content: gzipped or not, JSON or CSV. Each format has a module.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.base.files import replacing as replacing, staged as staged, write_text as write_text
    from gpumem.io import chrome as chrome, minimalloc as minimalloc
    from gpumem.io.machines import read_machine as read_machine
    from gpumem.io.reading import (
        BUNDLED as BUNDLED,
        Loaded as Loaded,
        bundled as bundled,
        bundled_path as bundled_path,
        load as load,
        read as read,
    )
    from gpumem.io.recorded import write_recording as write_recording
    from gpumem.io.writing import SUFFIXES as SUFFIXES, write as write

lazy_interface(__name__)
