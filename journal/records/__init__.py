"""Records: header, codec (layouts, encoders, decoders), identifiers, states and value types. Pure."""
