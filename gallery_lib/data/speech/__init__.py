"""Data sets of acoustic features, labelled with transcripts or with speakers.

`features` lists and reads the utterances of a folder, and `check` says what is wrong with it. The
data sets are `utterances` (with `characters`) and `speakers`. `mock_speech` and `mock_speakers`
generate mock data for them.
"""
