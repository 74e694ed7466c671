"""Data sets stored as real files, and the path of their batches to the device.

The kinds of data are `images`, `speech` and `text`. Each has generators of mock data, data sets
that read mock data or the user's own, and checks of real folders. `mock_folder` writes a data set
completely or not at all. `seeded_items` is the base of data sets with random choices. `folders`
lists and reads a user's files, and `commands` is the form of the commands in data_prep/. `loading`
serves all kinds of data. Nothing here downloads anything.
"""
