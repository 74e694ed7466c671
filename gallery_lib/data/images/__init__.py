"""Images with classes or masks, stored as files.

`mock_render` draws an image. `mock_manifest` records what is on disk. `mock_imagenet` and
`mock_segmentation` write folders. `decode` turns a file into a training image, and `crop` chooses
the part of it. `image_folder` and `segmentation_folder` are the data sets. `folder_listing` finds
classes and images. `folder_check` (with `file_check`) and `segmentation_check` say what is wrong
with a folder. `buffer_pool` reuses the memory of batches.
"""
