"""English text for language models, without a download.

`corpus` collects the text on this machine. `tokenizers` trains sub-word vocabularies on it, and
`tokenized` stores its tokens. `masking` cuts training samples and masks some of their tokens.
"""
