"""Data sets: mock ImageNet as real JPEG files, and the training data set that reads such folders.

mock_render.py draws one image; mock_manifest.py remembers and checks what is on disk; mock_imagenet.py writes the
folder. decode.py turns a file into a training image; image_folder.py is the data set; folder_check.py says what is
wrong with a folder. Nothing here downloads anything.
"""
