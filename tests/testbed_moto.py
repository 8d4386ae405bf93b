"""moto's server for test beds: checks signatures and permissions."""

import os
import re
import sys

from testbed import wait_for

# A user of moto may do what its policies say; these calls make the first one.
FIRST_CALLS = 3


def start_moto(bed, **variables):
    """Its port, once it listens; it ends with the bed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if "AWS" not in name and "proxy" not in name.lower()
    }
    environment["INITIAL_NO_AUTH_ACTION_COUNT"] = str(FIRST_CALLS)
    words = ["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = bed.start(
        sys.executable, *words, log="moto.log", env=environment | variables
    )

    def port():
        assert process.poll() is None, bed.log("moto.log")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", bed.log("moto.log"))
        return found and int(found[1])

    return wait_for(port, "moto tells its port")
