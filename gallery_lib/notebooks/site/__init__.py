"""Website of the gallery (`gallery site`): a folder of pages that need nothing but a browser.

`build` combines the other modules and runs Sphinx. `notebooks`, `index` and `reference` write
pages. `documents` copies documents from the checkout, mostly results and notes. `measured` reads
measurements. `docstrings` converts the package's docstrings for Sphinx. `check` inspects every
finished page. The content of `docs/` is used as it is.
"""
