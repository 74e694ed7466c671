"""`gallery site`: the gallery as a folder of pages that need nothing but a browser.

`build` puts the others together and runs Sphinx. `notebooks`, `index` and `reference` write pages; `documents` brings those that lie
in the checkout, results and notes above all; `measured` reads what was measured; `docstrings` is what Sphinx needs to read the
package's; `check` looks at every finished page. What stands in `docs/` is taken as it is.
"""
