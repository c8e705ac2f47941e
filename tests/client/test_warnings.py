"""What an application sees of the library's log that has set no logging up."""

import subprocess
import sys


def test_a_warning_is_seen_where_no_logging_is_set_up() -> None:
    program = "import logging, ringfence; logging.getLogger('ringfence.client').warning('all pass')"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stderr == "all pass\n"
