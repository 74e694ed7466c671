"""English text for language models, without a download: collected, tokenised, masked."""
