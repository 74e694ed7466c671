"""Folded parts of a notebook's output, hidden until a reader opens them.

`<details>` is HTML that JupyterLab keeps in the Markdown of an untrusted notebook. GitHub and the
site show it as well. The plain-text form of an output has everything unfolded.
"""

from __future__ import annotations

import re


def folded(title: str, content: str) -> str:
    """Return Markdown that shows only the title until a reader opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def unfolded(markdown: str) -> str:
    """Return the text with the content of each folded part below its title."""
    return re.sub(
        r"<details>\n<summary>(.*?)</summary>\n\n(.*?)\n\n</details>",
        r"\1:\n\n\2",
        markdown,
        flags=re.DOTALL,
    )
