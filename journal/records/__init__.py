"""Records: header, codec, identifiers, states and value types. Pure."""
