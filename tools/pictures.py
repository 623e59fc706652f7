"""Make the pictures of the docs from real runs: `python -m tools.pictures`. It takes about ten minutes on two cores.

Every picture comes from a command that a reader can run, on the starter tasks. The runs stay in `build/pictures`, and a second call
computes only what is missing. The claims are those of a study whose results are kept with the docs. SVG files carry a light and a dark
set of colours. The report's heat map, the atlas, a claim and the page of `unmask ui` are pairs of screenshots.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.chromium import CHROMIUM
from unmask.reporting.svg import ACCENT, INK, SOFT, as_svg, drawing, inline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CURVES = ROOT / "docs" / "measured" / "curves"
"""Losses of long trainings, which are kept: {"loss": [one for each step]}."""
RUNS = ROOT / "build" / "pictures"
STARTER = ROOT / "unmask" / "starter"
UI = ("ui", "-d", "prompteol,mean", "-m")
DOMAINS = "math", "coding", "knowledge", "reasoning"
LAYERS = {"smollm2": (4, 8, 12, 16, 20, 22, 24, 26, 28), "pico": (1, 2)}
_AROUND = 25  # steps; one has texts of few documents, so its loss says little
_WIDTH = 5.6  # inches, as the figures of a report: text can still be read on a phone
_SCREEN = 600  # pixels: a wider screenshot could not be read on a phone
_FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif'


def main() -> None:
    """Run the commands and write the pictures."""
    parser = argparse.ArgumentParser(description="Make the pictures of the docs from real runs.")
    parser.add_argument(
        "-m", "--model", default="smollm2", choices=sorted(LAYERS), help="pico is quick, and shows nothing real"
    )
    parser.add_argument("-o", "--output", type=Path, default=PICTURES)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the commands run")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    compare(given.model, given.runs)
    grow_mixture(given.model, given.runs)
    show_claims(given.runs)
    picture = given.output
    write(picture / "cost.svg", (given.runs / "report/report/figures/cost.svg").read_text("utf-8"), "Score against cost")
    with drawing():
        write(picture / "layers.svg", as_svg(layer_curves(given.runs)), "Score by layer")
        write(picture / "critical.svg", as_svg(critical_example()), "Critical-difference diagram")
        write(picture / "grown.svg", as_svg(loss_curve(CURVES / "grown.json")), "Loss of a grown mixture in training")
        write(picture / "clusters.svg", as_svg(clusters(given.runs)), "Clusters of hidden states and of routing weights")
        write(picture / "routing.svg", as_svg(routing(given.runs)), "Experts that the tokens of each domain go to")
    if CHROMIUM is None:
        print("no chromium: the screenshots stay as they are (`make browser` installs it)")
    else:
        report = given.runs / "report" / "report" / "report.html"
        photograph(report.resolve().as_uri(), picture, "report", "#heat", "width: max-content")
        atlas = given.runs / "routing" / "report" / "atlas.html"
        photograph(atlas.resolve().as_uri(), picture, "atlas", "#heat .pane", "")
        claims = given.runs / "routers" / "report" / "claims.html"
        photograph(claims.resolve().as_uri(), picture, "claims", "main > section:first-child > article:first-of-type", "")
        with page_of(given.model) as address:
            photograph(address, picture, "ui", "#compare .pair:has(table)", "")


def unmask(runs: Path, *arguments: str) -> None:
    """Run a command of unmask."""
    print("unmask", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "unmask", *arguments], cwd=runs, check=True, stdout=subprocess.DEVNULL)


def compare(model: str, runs: Path) -> None:
    """Compare designs, and layers, on the starter tasks."""
    at_layers = [f"{design}@{layer}" for design in ("causal/eol/last", "causal/plain/mean") for layer in LAYERS[model]]
    reference = ["-r", "minilm"] if model != "pico" else []
    unmask(runs, "compare", "-m", model, "-t", "starter", *reference, "-o", "report")
    unmask(runs, "compare", "-m", model, "-t", "starter", "-d", ",".join([*at_layers, "prompteol", "mean"]), "-o", "layers")
    unmask(runs, "report", "report")


def grow_mixture(model: str, runs: Path) -> None:
    """Train four small experts on half of the starter lessons and mix them. Ask how the mixture groups texts and routes the other half."""
    steps = "2" if model == "pico" else "8"
    for domain in DOMAINS:
        lessons = (STARTER / "lessons" / f"{domain}.jsonl").read_text("utf-8").splitlines(keepends=True)
        (runs / f"{domain}.jsonl").write_text("".join(lessons[::2]), "utf-8")
        (runs / f"{domain}-test.jsonl").write_text("".join(lessons[1::2]), "utf-8")
        if not (runs / "experts" / domain).exists():
            unmask(runs, "expert", f"{domain}.jsonl", "-m", model, "-o", f"experts/{domain}", "--steps", steps, "--batch", "4")
    if not (runs / "mixture").exists():
        taught = [part for domain in DOMAINS for part in ("--lessons", f"{domain}={domain}.jsonl")]
        experts = [f"experts/{domain}" for domain in DOMAINS]
        unmask(runs, "mix", *experts, *taught, "-o", "mixture", "--start", "prototypes", "--steps", "0", "--renormalise")
    texts = str(STARTER / "clustering" / "all.jsonl")
    unmask(runs, "probe", "clusters", texts, "-m", "mixture", "--clusters", "6", "--label", "label", "-o", "clusters")
    heldout = [part for domain in DOMAINS for part in ("-t", f"{domain}-test.jsonl")]
    unmask(runs, "probe", "routing", "-m", "mixture", *heldout, "--column", "output", "-o", "routing")
    unmask(runs, "report", "routing")


def show_claims(runs: Path) -> None:
    """The page of a study that took a night: its results are kept with the docs."""
    (runs / "routers").mkdir(exist_ok=True)
    shutil.copyfile(ROOT / "docs" / "measured" / "routers-smollm2.json", runs / "routers" / "results.json")
    unmask(runs, "report", "routers")


def layer_curves(runs: Path) -> Figure:
    """Score by layer, as in the report of the same results. The report's tests of all pairs are left out: they take minutes."""
    from unmask.reporting.figures import layers
    from unmask.reporting.grid import read_grid

    grid = read_grid(runs / "layers")
    figure = layers(grid, summary=None)  # type: ignore[arg-type]
    assert figure
    return figure


def critical_example() -> Figure:
    """The diagram of the example on the page of statistics."""
    from unmask.reporting.figures import critical_diagram

    page = (ROOT / "docs" / "statistics.md").read_text("utf-8")
    example = re.search(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert example, "docs/statistics.md shows no Python"
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(example[1], names)
    figure = critical_diagram(names["ranks"])
    figure.set_size_inches(_WIDTH, figure.get_figheight())
    return figure


def loss_curve(file: Path) -> Figure:
    """The loss of each step as points, and a line through the means of 25 steps around each."""
    from matplotlib.figure import Figure

    losses = np.array(json.loads(file.read_text("utf-8"))["loss"])
    means = np.convolve(losses, np.ones(_AROUND) / _AROUND, mode="valid")
    first = 1 + _AROUND // 2
    figure = Figure(figsize=(_WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.scatter(np.arange(1, 1 + len(losses)), losses, s=5, color=SOFT, label="one step")
    axes.plot(np.arange(first, first + len(means)), means, color=ACCENT, linewidth=2, label=f"mean of {_AROUND} steps")
    axes.set(xlabel="step", ylabel="nats per token", xlim=(0, len(losses)))
    axes.grid(visible=True)
    axes.legend(frameon=False)
    return figure


def clusters(runs: Path) -> Figure:
    """Which clusters of routing weights the texts of each cluster of hidden states fall into, from `unmask probe clusters`."""
    found = json.loads((runs / "clusters" / "clusters.json").read_text("utf-8"))
    table = np.array(found["table"], float)
    rows, columns = ([", ".join(some[:2]) or "-" for some in words] for words in found["words"])
    return shares(table / table.sum(axis=1, keepdims=True), rows, columns, "clusters of hidden states", "of routing weights")


def routing(runs: Path) -> Figure:
    """Which experts the tokens of each domain have as their first, over lessons that no expert and no router has seen."""
    from unmask import Mixture
    from unmask.moe.experts.expert_usage import measure_usage
    from unmask.moe.experts.lessons.lessons import read_lessons

    mixture = Mixture.from_pretrained(str(runs / "mixture"))
    usage = measure_usage(mixture, mixture.tokenizer, {name: read_lessons(runs / f"{name}-test.jsonl") for name in DOMAINS})
    return shares(np.array(usage.load), usage.domains, usage.experts, "lessons about", "tokens that go to the expert of")


def shares(table: Any, rows: Sequence[str], columns: Sequence[str], left: str, above: str) -> Figure:
    """A table of shares, each with its number on a shade of its size."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(_WIDTH, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    shades = [colours()[0][f"--h{level}"] for level in range(10)]
    for (row, column), share in np.ndenumerate(table):
        shade = shades[min(9, int(10 * share))]
        axes.add_patch(Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, facecolor=shade, edgecolor="none"))
        axes.text(column, row, f"{100 * share:.0f} %", ha="center", va="center", color=INK)
    crowded = max(map(len, columns)) > 50 / len(columns)
    axes.set(xlim=(-0.5, len(columns) - (0.1 if crowded else 0.5)), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns, rotation=35 if crowded else 0, ha="left" if crowded else "center")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False, left=False, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_ylabel(left)
    axes.set_xlabel(above)
    axes.xaxis.set_label_position("top")
    return figure


def colours() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The light and the dark colours of a report's page, by variable."""
    css = (files("unmask.reporting") / "page" / "colours.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)[:2]
    return dict(re.findall(r"(--[\w-]+): (#\w+)", light)), dict(re.findall(r"(--[\w-]+): (#\w+)", dark))


def write(file: Path, svg: str, title: str) -> None:
    """Write an SVG file that is dark where its page is dark."""
    light, dark = colours()
    drawn = inline(svg, file.stem, title)
    for shade in (name for name in light if re.fullmatch(r"--h\d", name)):
        drawn = drawn.replace(light[shade], f"var({shade})")
    sets = (" ".join(f"{name}: {colour};" for name, colour in some.items()) for some in (light, dark))
    style = ":root {{ {} }} @media (prefers-color-scheme: dark) {{ :root {{ {} }} }} text {{ font-family: {} !important; }}"
    drawn = drawn.replace(">", f"><style>{style.format(*sets, _FONTS)}</style>", 1)
    file.write_text(drawn + "\n", "utf-8")


@contextmanager
def page_of(model: str) -> Iterator[str]:
    """The address of `unmask ui` while it runs."""
    print("unmask", *UI, model, flush=True)
    program = subprocess.Popen([sys.executable, "-m", "unmask", *UI, model], stderr=subprocess.PIPE, text=True)
    try:
        assert program.stderr
        yield next(found[0] for line in program.stderr if (found := re.search(r"http://\S+", line)))
    finally:
        program.send_signal(signal.SIGINT)
        program.wait()


def photograph(address: str, folder: Path, name: str, part: str, body: str) -> None:
    """Write screenshots of a part of a page, light and dark. part: its selector; body: a style of the page's body."""
    from io import BytesIO

    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            tab = browser.new_page(
                viewport={"width": _SCREEN, "height": 2400}, device_scale_factor=2, color_scheme=scheme, reduced_motion="reduce"
            )
            tab.goto(address)
            tab.locator(part).wait_for()
            # by script, since the policy of a page allows no style that is added
            tab.evaluate("style => { document.body.style.cssText = style; }", body)
            tab.locator(".scroll").evaluate_all("all => all.forEach((one) => { one.style.overflow = 'visible'; })")
            shot = tab.screenshot(full_page=True, clip=tab.locator(part).bounding_box())
            Image.open(BytesIO(shot)).save(folder / f"{name}-{scheme}.webp", quality=85, method=6)
        browser.close()


if __name__ == "__main__":
    main()
