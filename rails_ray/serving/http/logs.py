"""Where a server's own log goes: standard error, as it was before Serve replaced it.

In profile production Serve turns what a replica writes to `sys.stderr` into INFO messages of its own log, which our
config turns off. So what goes there, by Python's default the warnings of all other loggers, is lost.

RAILS_RAY_LOG_LEVEL is the lowest level that is logged: WARNING by default; INFO logs each answer with its request's id.
"""

import logging
import os
import sys

VARIABLE, LEVELS = "RAILS_RAY_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR")
log = logging.getLogger("rails_ray")


def to_stderr() -> None:
    """Log there from now on, with the time; a cluster keeps it with what its workers say.

    Raises:
        ValueError: if the variable is no level.
    """
    level = os.environ.get(VARIABLE, "WARNING")
    if level not in LEVELS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, got {level!r}: unset it or choose one")
    log.setLevel(level)
    if log.handlers:
        return
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
