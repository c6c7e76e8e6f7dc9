"""Metadata of topics: their brokers, partitions and codecs, from ZooKeeper or from brokers listed by hand."""
