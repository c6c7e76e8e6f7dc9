"""Consumer groups: membership, partition ownership, offsets."""
