"""English text for language models, without a download.

`corpus` collects the text on this machine; `grammar` generates an artificial language where there
is too little. `tokenizers` trains sub-word vocabularies on the text. `tokenized` tokenises it once,
into `token_files` on disk. `masking` cuts training samples and masks some of their tokens.
"""
