"""A site: one data holder that answers letters. `service` has the letters, `worker` the data."""
