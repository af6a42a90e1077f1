"""Run a command on the fake driver: `python -m tests.fake_cuda COMMAND...`."""

import os
import sys

from tests.fake_cuda import environment

if len(sys.argv) < 2:
    sys.exit(__doc__)
os.execvpe(sys.argv[1], sys.argv[1:], environment())
