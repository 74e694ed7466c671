"""Data sets as real files: generators of mock data, the data sets that read it or the user's own, checks of folders.

Images: mock_render.py draws one, mock_manifest.py remembers what is on disk, mock_imagenet.py and mock_segmentation.py
write folders, decode.py turns a file into a training image, image_folder.py and segmentation_folder.py are the data
sets, folder_check.py and segmentation_check.py say what is wrong with a folder. Speech: feature_manifest.py lists
utterances, speech.py and speakers.py are the data sets, mock_speech.py and mock_speakers.py make some. Text: the text
files. For all: length_buckets.py and device_loader.py. Nothing here downloads anything.
"""
