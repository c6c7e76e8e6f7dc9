"""The command `metaq audit`."""
