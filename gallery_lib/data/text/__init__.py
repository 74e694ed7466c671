"""English text for language models, without a download.

`corpus` collects the text on this machine, `tokenized` trains sub-word vocabularies on it and
stores its tokens, and `masking` cuts training samples and masks some of their tokens.
"""
