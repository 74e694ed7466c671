"""Data sets of acoustic features, labelled with transcripts or with speakers.

`feature_manifest` lists the utterances of a folder, `feature_files` reads their features, and
`feature_check` checks such a folder. The data sets are `utterances` (with `characters` and
`alignment`) and `speakers`. `mock_speech` and `mock_speakers` generate mock data for them.
"""
