"""Make the pictures of the docs from real runs: `python -m tools.pictures`, about ten minutes on two cores.

Every picture comes from a command that a reader can run on the starter tasks. The runs stay in `build/pictures`; a second call
computes only what is missing. SVG files carry a light and a dark set of colours; screenshots come in pairs.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.chromium import CHROMIUM
from unmask.reporting.svg import ACCENT, INK, SOFT, as_svg, figure_style, inline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
PICTURES = ROOT / "docs" / "pictures"
RUNS = ROOT / "build" / "pictures"
STARTER = ROOT / "unmask" / "starter"
MODEL = "smollm2"
DOMAINS = "math", "coding", "knowledge", "reasoning"
WIDTH = 5.6  # inches, as figures of a report: readable on a phone
SCREEN = 600  # pixels
FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif'


def main() -> None:
    """Run the commands and write the pictures."""
    RUNS.mkdir(parents=True, exist_ok=True)
    run_commands()
    write_svg("cost", (RUNS / "report/report/figures/cost.svg").read_text("utf-8"), "Score against cost")
    with figure_style():
        write_svg("layers", as_svg(layer_curves()), "Score by layer")
        write_svg("critical", as_svg(critical_diagram_example()), "Critical-difference diagram")
        write_svg("grown", as_svg(loss_curve()), "Loss of a grown mixture in training")
        write_svg("clusters", as_svg(cluster_shares()), "Clusters of hidden states and of routing weights")
        write_svg("routing", as_svg(routing_shares()), "Experts that the tokens of each domain go to")
    if CHROMIUM is None:
        print("no chromium: the screenshots stay as they are (`make browser` installs it)")
        return
    screenshot((RUNS / "report/report/report.html").as_uri(), "report", "#heat", "width: max-content")
    screenshot((RUNS / "routing/report/atlas.html").as_uri(), "atlas", "#heat .pane")
    screenshot((RUNS / "routers/report/claims.html").as_uri(), "claims", "main article:has(.undecided)")
    with local_page() as address:
        screenshot(address, "ui", "#compare .pair:has(table)")


def run_commands() -> None:
    """Compare designs and layers; mix four small experts, which learn from half of the starter lessons; write the reports."""
    layers = [
        f"{design}@{n}" for design in ("causal/eol/last", "causal/plain/mean") for n in (4, 8, 12, 16, 20, 22, 24, 26, 28)
    ]
    unmask(f"compare -m {MODEL} -t starter -r minilm -o report")
    unmask(f"compare -m {MODEL} -t starter -d {','.join([*layers, 'prompteol', 'mean'])} -o layers")
    unmask("report report")
    for domain in DOMAINS:
        lessons = (STARTER / "lessons" / f"{domain}.jsonl").read_text("utf-8").splitlines(keepends=True)
        (RUNS / f"{domain}.jsonl").write_text("".join(lessons[::2]), "utf-8")
        (RUNS / f"{domain}-test.jsonl").write_text("".join(lessons[1::2]), "utf-8")
        if not (RUNS / "experts" / domain).exists():
            unmask(f"expert {domain}.jsonl -m {MODEL} -o experts/{domain} --steps 8 --batch 4")
    if not (RUNS / "mixture").exists():
        parts = " ".join(f"experts/{domain} --lessons {domain}={domain}.jsonl" for domain in DOMAINS)
        unmask(f"mix {parts} -o mixture --start prototypes --steps 0 --renormalise")
    texts = STARTER / "clustering" / "all.jsonl"
    unmask(f"probe clusters {texts} -m mixture --clusters 6 --label label -o clusters")
    unmask(f"probe routing -m mixture {' '.join(f'-t {domain}-test.jsonl' for domain in DOMAINS)} --column output -o routing")
    unmask("report routing")
    (RUNS / "routers").mkdir(exist_ok=True)
    shutil.copyfile(MEASURED / "routers-smollm2.json", RUNS / "routers" / "results.json")
    unmask("report routers")


def unmask(command: str) -> None:
    """Run a command of unmask."""
    print("unmask", command, flush=True)
    subprocess.run([sys.executable, "-m", "unmask", *command.split()], cwd=RUNS, check=True, stdout=subprocess.DEVNULL)


# --- figures ---------------------------------------------------------------------------------------------------------


def layer_curves() -> Figure:
    """Score by layer, as in the report of the same results, without its tests of all pairs, which take minutes."""
    from unmask.reporting.figures import layers
    from unmask.reporting.grid import read_grid

    figure = layers(read_grid(RUNS / "layers"), summary=None)  # type: ignore[arg-type]
    assert figure
    return figure


def critical_diagram_example() -> Figure:
    """The diagram of the Python example in docs/statistics.md."""
    from unmask.reporting.figures import critical_diagram

    example = re.search(r"^```python\n(.*?)^```", (ROOT / "docs/statistics.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert example
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(example[1], names)
    figure = critical_diagram(names["ranks"])
    figure.set_size_inches(WIDTH, figure.get_figheight())
    return figure


def loss_curve() -> Figure:
    """The loss of each step, and a moving average over 25 steps: one step has texts of few documents, so its loss says little."""
    from matplotlib.figure import Figure

    losses = np.array(json.loads((MEASURED / "curves" / "grown.json").read_text("utf-8"))["loss"])
    means = np.convolve(losses, np.ones(25) / 25, mode="valid")
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.scatter(np.arange(1, 1 + len(losses)), losses, s=5, color=SOFT, label="one step")
    axes.plot(np.arange(13, 13 + len(means)), means, color=ACCENT, linewidth=2, label="mean of 25 steps")
    axes.set(xlabel="step", ylabel="nats per token", xlim=(0, len(losses)))
    axes.grid(visible=True)
    axes.legend(frameon=False)
    return figure


def cluster_shares() -> Figure:
    """The clusters of routing weights that the texts of each cluster of hidden states fall into."""
    result = json.loads((RUNS / "clusters" / "clusters.json").read_text("utf-8"))
    table = np.array(result["table"], float)
    rows, columns = ([", ".join(words[:2]) or "-" for words in of_design] for of_design in result["words"])
    return shares(table / table.sum(axis=1, keepdims=True), rows, columns, "clusters of hidden states", "of routing weights")


def routing_shares() -> Figure:
    """The first expert of the tokens of each domain, over lessons that neither experts nor router have seen."""
    from unmask import Mixture
    from unmask.moe.experts.expert_usage import measure_usage
    from unmask.moe.experts.lessons.lessons import read_lessons

    mixture = Mixture.from_pretrained(str(RUNS / "mixture"))
    usage = measure_usage(mixture, mixture.tokenizer, {name: read_lessons(RUNS / f"{name}-test.jsonl") for name in DOMAINS})
    return shares(np.array(usage.load), usage.domains, usage.experts, "lessons about", "tokens that go to the expert of")


def shares(table: Any, rows: Sequence[str], columns: Sequence[str], left: str, above: str) -> Figure:
    """A table of shares, each on a shade of its size."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(WIDTH, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    shades = [colours()[0][f"--h{level}"] for level in range(10)]
    for (row, column), share in np.ndenumerate(table):
        shade = shades[min(9, int(10 * share))]
        axes.add_patch(Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, facecolor=shade, edgecolor="none"))
        axes.text(column, row, f"{100 * share:.0f} %", ha="center", va="center", color=INK)
    is_crowded = max(map(len, columns)) > 50 / len(columns)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), ylabel=left)
    axes.set_xticks(range(len(columns)), columns, rotation=35 * is_crowded, ha="left" if is_crowded else "center")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False, left=False, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(above)
    axes.xaxis.set_label_position("top")
    return figure


def colours() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The light and the dark colours of a report's page, by variable."""
    css = (files("unmask.reporting") / "page" / "colours.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)[:2]
    return dict(re.findall(r"(--[\w-]+): (#\w+)", light)), dict(re.findall(r"(--[\w-]+): (#\w+)", dark))


def write_svg(name: str, svg: str, title: str) -> None:
    """Write an SVG file that is dark where its page is dark."""
    light, dark = colours()
    svg = inline(svg, name, title)
    for level in range(10):
        svg = svg.replace(light[f"--h{level}"], f"var(--h{level})")
    sets = (" ".join(f"{variable}: {colour};" for variable, colour in theme.items()) for theme in (light, dark))
    style = ":root {{ {} }} @media (prefers-color-scheme: dark) {{ :root {{ {} }} }} text {{ font-family: {} !important; }}"
    svg = svg.replace(">", f"><style>{style.format(*sets, FONTS)}</style>", 1)
    (PICTURES / f"{name}.svg").write_text(svg + "\n", "utf-8")


# --- screenshots -----------------------------------------------------------------------------------------------------


@contextmanager
def local_page() -> Iterator[str]:
    """The address of `unmask ui` while it runs."""
    command = [sys.executable, "-m", "unmask", "ui", "-d", "prompteol,mean", "-m", MODEL]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        yield next(address[0] for line in process.stderr if (address := re.search(r"http://\S+", line)))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def screenshot(address: str, name: str, selector: str, body_style: str = "") -> None:
    """Write screenshots of the first part of a page that a selector finds, light and dark."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            tab = browser.new_page(
                viewport={"width": SCREEN, "height": 2400}, device_scale_factor=2, color_scheme=scheme, reduced_motion="reduce"
            )
            tab.goto(address)
            part = tab.locator(selector).first
            part.wait_for()
            # by script, since the policy of a page forbids added styles
            tab.evaluate("style => { document.body.style.cssText = style; }", body_style)
            tab.locator(".scroll").evaluate_all("parts => parts.forEach((part) => { part.style.overflow = 'visible'; })")
            shot = tab.screenshot(full_page=True, clip=part.bounding_box())
            Image.open(BytesIO(shot)).save(PICTURES / f"{name}-{scheme}.webp", quality=85, method=6)
        browser.close()


if __name__ == "__main__":
    main()
