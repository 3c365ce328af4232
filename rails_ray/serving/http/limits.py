"""Limits on what a client may ask at once, and how long it may take to say it."""

HEADERS_S = 10  # for the headers of a request to arrive: many times what a slow network needs
BODY_S = 20.0  # for a body to arrive; Serve would drop the request after thirty without a reason
MAX_BODY_BYTES = 8 * 2**20
MAX_REQUESTS = 64  # answered at once
ANSWER_S = 28.0  # for an answer: then Serve would drop it without a reason, soon after
DEADLINE_S = 25.0  # when to stop waiting for the heavy ranker; below what Serve allows for a request
