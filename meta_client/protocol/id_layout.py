"""Layout of metaq's message ids: time and broker (spec 3.4). Pure.

    | milliseconds since BIRTH_MS: 41 bits | broker id: 10 bits | sequence: 12 bits |

A genuine broker's ids count from its host's boot: they contain no time of day. Stands alone: the broker writes ids, and
commands read them.
"""

from typing import Final

BIRTH_MS: Final = 1_303_895_660_503
SEQUENCE_BITS: Final = 12
BROKER_BITS: Final = 10


def time_ms_of(message_id: int) -> int:
    """Return the time at which a metaq broker assigned *message_id*, and so stored the message, in Unix
    milliseconds."""
    return (message_id >> (BROKER_BITS + SEQUENCE_BITS)) + BIRTH_MS


def broker_of(message_id: int) -> int:
    return message_id >> SEQUENCE_BITS & (1 << BROKER_BITS) - 1
