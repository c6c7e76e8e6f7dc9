"""Status codes of a result (spec 1.4.3). Stands alone: errors, requests and responses, which import it, must not import
each other."""

from enum import IntEnum


class Status(IntEnum):
    """Status of a response. A peer may send other numbers: a result keeps its plain int."""

    SUCCESS = 200
    MOVED = 301  # get only; the message is the decimal offset to continue from
    BAD_REQUEST = 400
    NOT_AUTHENTICATED = 401  # say who you are first, or what you said is wrong; no broker of the 1.4 line sends it
    FORBIDDEN = 403
    NOT_FOUND = 404
    NOT_AUTHORISED = 405  # the connection's principal may not do this
    STALE_OWNER = 409  # fetch with an epoch only; the message begins with the highest one seen
    BEYOND_END = 416  # fetch only; the message is the decimal offset at which the partition ends
    TOO_MANY = 429  # more than a quota allows: send it again later
    INTERNAL_ERROR = 500
    UNAVAILABLE = 503
    GATEWAY_TIMEOUT = 504  # made up by a client for requests whose connection broke, never on the wire
