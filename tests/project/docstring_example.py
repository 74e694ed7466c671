"""Run the example in the docstring of a public call.

    python tests/project/docstring_example.py gallery_lib.acceleration.one_call accelerate

Without a name, the docstring is that of the module. The example is the doctest in the section
`Example:`. It runs as it is written, with nothing defined beforehand. Prints each line that fails
or prints other text, and ends with exit code 1 if there are any, or if there is no example.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import sys

_SECTION = re.compile(r"^Example:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


def example_of(module: str, name: str | None) -> str | None:
    """Return the section `Example:` of a docstring; None where it has none that can be run.

    A class has no docstring here if it inherits one.
    """
    owner = importlib.import_module(module)
    documented = owner if name is None else getattr(owner, name)
    section = _SECTION.search(inspect.cleandoc(documented.__doc__ or ""))
    if section is None or (name is not None and documented.__module__ != module):
        return None
    return section[1] if doctest.DocTestParser().get_examples(section[1]) else None


def run(text: str, name: str) -> bool:
    """Run the example, print what goes wrong, and return whether anything did."""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    return doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed > 0


if __name__ == "__main__":
    module, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    text = example_of(module, name)
    call = ".".join([module, *([name] if name else [])])
    if text is None:
        sys.exit(f"the docstring of {call} has no example: a section `Example:` with `>>>` lines")
    sys.exit(run(text, call))
