"""Messages as rows: the data source `metaq`, from journals and from brokers, in batch and as a stream."""
