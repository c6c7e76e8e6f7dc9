"""Commands of the broker: `metaq broker`, `dev`, `checkpoint` and `promote`."""
