"""Where a server's own log goes: standard error, as it was before Serve replaced it.

In profile production Serve makes what a replica writes to `sys.stderr` a message of level INFO of its own log, which
our config turns off. So what goes there, by Python's default the warnings of all other loggers, is lost.

RAILS_RAY_LOG_LEVEL says from which level on: WARNING by default, INFO to have each answer with the id of its request.
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
        raise ValueError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, got {level!r}: set it again")
    log.setLevel(level)
    if log.handlers:
        return
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
