"""Acoustic features with transcripts or speakers.

`feature_manifest` lists the utterances of a folder, `feature_check` says what is wrong with one. `utterances` (with
`characters` and `alignment`) and `speakers` are the data sets, `mock_speech` and `mock_speakers` make some.
"""
