"""Where a server's own log goes: standard error, as it was before Serve replaced it.

In profile production Serve makes what a replica writes to `sys.stderr` a message of level INFO of its own log, which
our config turns off. So what goes there, by Python's default the warnings of all other loggers, is lost.
"""

import logging
import sys

log = logging.getLogger("rails_ray")


def to_stderr() -> None:
    """Log there from now on, with the time; a cluster keeps it with what its workers say."""
    if log.handlers:
        return
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
