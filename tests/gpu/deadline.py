"""When a part of `run.sh` has to have printed what it has."""

import os
import time

STARTED = time.monotonic()
# What ending, printing and whatever went before this was imported may take.
ASIDE_SECONDS = 12


def deadline():
    """On the monotonic clock; `TIDEGATE_GPU_SECONDS` is what the process has, for ever where it is not said."""
    seconds = os.environ.get("TIDEGATE_GPU_SECONDS")
    return STARTED + max(float(seconds) - ASIDE_SECONDS, 1) if seconds else float("inf")
