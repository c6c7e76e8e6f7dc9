"""The sink `metaq`: a micro-batch is one transaction over all brokers, and is in the topics once."""
