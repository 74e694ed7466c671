"""Images as files: mock data, data sets and their check."""
