"""Everything around the notebooks: the calls in their cells, batches, the site, archives, JupyterLab."""
