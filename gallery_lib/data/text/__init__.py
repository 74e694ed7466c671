"""English text for language models, without a download.

`corpus` finds it on the machine (`grammar` makes a language where there is none), `tokenizers` learns sub-words from it,
`tokenized` keeps it on disk as token ids, `masking` cuts samples and hides some of their words.
"""
