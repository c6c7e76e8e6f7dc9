"""Check, damage and repair of a journal, and directories whose broker does not run."""
