"""The files, planners and bounds that commands are tested with, for suites too."""

from tests.cli.conftest import bounded as bounded, net_file as net_file, table as table
