"""Notebook tooling: functions that cells call, batch runs, the website, archives, JupyterLab."""
