"""Images with classes or masks, stored as files.

`mock_imagenet` and `mock_segmentation` draw mock data. `decode` turns a file into a training image
(`jpeg` is the library for it). `image_folder` (with `listing`) and `segmentation_folder` are the
data sets. `check` says what is wrong with a folder.
"""
