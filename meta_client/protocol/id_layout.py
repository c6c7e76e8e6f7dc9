"""What a message id of metaq says: when it was given out and by which broker (spec 3.4). Pure.

    | milliseconds since BIRTH_MS: 41 bits | broker id: 10 bits | sequence: 12 bits |

A genuine broker's count from its host's boot: they say nothing of the time of day.
"""

from typing import Final

BIRTH_MS: Final = 1_303_895_660_503
SEQUENCE_BITS: Final = 12
BROKER_BITS: Final = 10


def time_ms_of(message_id: int) -> int:
    """When a metaq broker gave out *message_id*, in Unix milliseconds: when the message was put."""
    return (message_id >> (BROKER_BITS + SEQUENCE_BITS)) + BIRTH_MS


def broker_of(message_id: int) -> int:
    """The broker id in *message_id*."""
    return message_id >> SEQUENCE_BITS & (1 << BROKER_BITS) - 1
