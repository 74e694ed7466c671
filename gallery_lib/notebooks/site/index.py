"""Front page of the site: every notebook with a picture of its result, its needs, and what helped.

The page is a plain list. `docs/static/gallery.js` adds the filter, which uses the values of each
item. The needs of a notebook are estimated from its task's own declarations. What helped is only
said where it was measured. The picture shows the measurement that the item names; without a
measurement, it is the first figure of the executed notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.notebooks.batch.shares import CPU_ONLY
from gallery_lib.notebooks.site.measured import Measurement, mark, speedup_text
from gallery_lib.notebooks.site.notebooks import Source, first_figure
from gallery_lib.report import speedups
from gallery_lib.report.speedups import Speedup
from gallery_lib.tasks import memory_estimate

CARDS = "cards"
_HOST_GIBIBYTES = (4, 8, 16, 32)
_GPU_GIBIBYTES = (16, 24, 40, 80)
NOT_MEASURED = "not measured"
ANY_MODEL = "any model"


@dataclass(frozen=True)
class Entry:
    """One notebook on the front page.

    `hardware` names every kind of machine that suffices, the smallest first.
    """

    name: str
    title: str
    summary: str
    domain: str
    hardware: tuple[str, ...]
    needs: str
    measured: str
    helped: tuple[str, ...]
    picture: str | None  # address in the page's link
    alternative: str  # alternative text of the picture
    executed: bool
    other_code: bool  # whether it was measured with other code than the present


def _host(gibibytes: int) -> str:
    return f"two CPU cores, {gibibytes} GiB"


def _gpu(gibibytes: int) -> str:
    return f"one GPU, {gibibytes} GiB (full size)"


def hardware_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return the machines that the notebook `name` runs on, and its need in words.

    A comparison holds two variants at a time. On a GPU only the model's memory counts, without that
    of Python and its libraries.
    """
    if name not in tasks.names():
        gpus = "GPUs are not used" if name in CPU_ONLY else "GPUs are used where there are any"
        return tuple(map(_host, _HOST_GIBIBYTES)), f"two CPU cores; {gpus}"
    run = TrainConfig(model=name)
    host = 2 * memory_estimate.needed_bytes(tasks.with_sizes(run, "quick"), compared=True) / 2**30
    gpu = (
        2
        * (
            memory_estimate.needed_bytes(tasks.with_sizes(run, "full"), compared=True)
            - memory_estimate.PROCESS_BYTES
        )
        / 2**30
    )
    will_do = [_host(size) for size in _HOST_GIBIBYTES if size >= host] + [
        _gpu(size) for size in _GPU_GIBIBYTES if size >= gpu
    ]
    return tuple(
        will_do
    ), f"two CPU cores and {host:.1f} GiB; at full size a GPU with {gpu:.0f} GiB (estimated)"


def counted(measurements: list[Measurement]) -> Measurement | None:
    """Return the measurement that the front page shows; None without any on one process.

    It is the first on one process. A measurement of a notebook is preferred to one of a waterfall.
    """
    alone = [m for m in measurements if m.processes == 1]
    return next((m for m in alone if not m.told_apart), next(iter(alone), None))


def outcome(measurements: list[Measurement]) -> tuple[str, tuple[str, ...]]:
    """Return the result on one process, and what helped.

    A measured waterfall tells which techniques helped. Otherwise all techniques are named together,
    if the backend was faster.
    """
    first, alone = counted(measurements), [m for m in measurements if m.processes == 1]
    if first is None:
        return NOT_MEASURED, (NOT_MEASURED,)
    text = f"{speedup_text(first)}, {first.precision}, on {first.machine}"
    if apart := [m for m in alone if m.told_apart]:
        return text, apart[0].techniques or ("no technique by itself",)
    if first.verdict != "faster":
        return text, (first.verdict,)
    return text, first.techniques if first.techniques else ("not recorded",)


def _draw(source: Source, first: Measurement | None, picture: Path) -> str | None:
    """Write the picture of an item and return its alternative text.

    Returns None where there is nothing to show.
    """
    if first is not None:
        one = Speedup(
            source.name,
            source.title,
            first.speedup,
            first.verdict,
            first.precision,
            first.machine,
            first.date,
        )
        speedups.card(one).savefig(picture, dpi=110)
        return speedups.card_text(one)
    figure = first_figure(source.path)
    if figure is None:
        return None
    png, alternative = figure
    picture.write_bytes(png)
    return alternative


def entry(
    source: Source, measurements: list[Measurement], digests: Mapping[str, str], pictures: Path
) -> Entry:
    """Return the front page's item for a notebook, and write the item's picture.

    Args:
        source: the notebook.
        measurements: measurements of all notebooks, in order of preference.
        digests: digest of the present code, by notebook.
        pictures: folder that the picture is written into.
    """
    hardware, needs = hardware_of(source.name)
    own = [m for m in measurements if m.name == source.name]
    measured, helped = outcome(own)
    first = counted(own)
    alternative = _draw(source, first, pictures / f"{source.name}.png")
    return Entry(
        name=source.name,
        title=source.title,
        summary=source.summary,
        domain=tasks.get(source.name).domain if source.name in tasks.names() else ANY_MODEL,
        hardware=hardware,
        needs=needs,
        measured=measured,
        helped=helped,
        picture=f"_static/{CARDS}/{source.name}.png" if alternative else None,
        alternative=alternative or "",
        executed=source.executed,
        other_code=first is not None and bool(mark(first, digests)),
    )


def page(entries: list[Entry], documents: list[str]) -> str:
    """Return the front page as Markdown, with the list as HTML.

    `documents` are the files of pages about the project.
    """
    loader = jinja2.PackageLoader("gallery_lib.notebooks.site", package_path="")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=jinja2.select_autoescape(["html.jinja"]),
        undefined=jinja2.StrictUndefined,
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    machines = [*map(_host, _HOST_GIBIBYTES), *map(_gpu, _GPU_GIBIBYTES)]
    facets = {
        "domain": sorted({e.domain for e in entries}),
        "hardware": [
            machine for machine in machines if any(machine in e.hardware for e in entries)
        ],
        "helped": sorted(
            {what for e in entries for what in e.helped},
            key=lambda what: (what == NOT_MEASURED, what),
        ),
    }
    cards = environment.get_template("cards.html.jinja").render(entries=entries, facets=facets)
    return environment.get_template("index.md.jinja").render(
        entries=entries, cards=cards, documents=documents
    )
