"""A broker's side: registration, the list of brokers, replication state."""
