"""Data sets stored as real files, and the path of their batches to the device.

`images` and `speech` have generators of mock data, data sets that read mock data or the user's own,
and checks of real folders. `text` tokenises the user's text or the English that Python comes with,
and `masking` makes the samples of language models from it. `mock_folder` writes a data set
completely or not at all. `seeded_items` is the base of data sets with random choices. `folders`
lists and reads a user's files, and `commands` is the form of the commands in data_prep/. `loading`
serves all kinds of data. Nothing here downloads anything.
"""
