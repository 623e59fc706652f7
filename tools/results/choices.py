"""Views of a recommendation: what was chosen, in which rounds, and the prompt."""

from __future__ import annotations

from tools.results.cells import bold, command, interval, listed, markdown
from tools.results.kept import Kept
from unmask.designs.design import Design
from unmask.designs.prompts import find_prompt
from unmask.statistics.paired import SIGNIFICANT

_BEST, _WORST, _NAMED = 10, 5, 6


def choice(kept: Kept) -> str:
    """The command, what was chosen and how well it does, and the best and the worst of the last round."""
    rows = [_standing(one) for one in kept["last_round"]]
    told = f"{_told(kept)} The table has the {len(rows)} designs of the last round.\n"
    if len(rows) > _BEST + _WORST:
        between = (f"{len(rows) - _BEST - _WORST} more", "", "", "")
        rows = [*rows[:_BEST], between, *rows[-_WORST:]]
    heading = f"score on the {kept['chosen_on']} items of the choice"
    table = markdown(("design", heading, "behind", "tokens a text"), rows)
    note = (
        f"Scores are the main score x 100. Bold: worse than the first design, p < {SIGNIFICANT} (paired bootstrap over items). "
        "Both p and the interval are corrected over all pairs (Holm).\n"
    )
    return f"{command(kept)}\n{told}\n{table}\n{note}"


def _told(kept: Kept) -> str:
    """What was chosen, how it scores, and how many designs are tied with it."""
    ties = len(kept["ties"])
    *earlier, _ = kept["rounds"]
    dropped = sum(one["designs"] - len(one["kept"]) for one in earlier)
    worse = dropped + sum(bool(one["worse"]) for one in kept["last_round"])  # candidates that are layers may have no score
    score = f"**{100 * kept['score']:.1f}** {interval(kept['interval'])}"
    on_what = f"On {kept['items']} other items, its score is {score}."
    if not kept["held_out"]:
        on_what = f"Its score on these items is {score}. The interval is widened, since the design was chosen by this score."
    tied = f"{ties} design{' is' if ties == 1 else 's are'} tied with it, and {worse} {'is' if worse == 1 else 'are'} worse."
    return f"`{kept['label']}` was chosen from {kept['candidates']} designs on {kept['chosen_on']} items. {on_what} {tied}"


def _standing(standing: Kept) -> tuple[str, ...]:
    behind = ""
    if standing["interval"] is not None:
        points = f"{100 * standing['behind']:.1f}"
        behind = f"{bold(points, standing['worse'])} {interval(standing['interval'])}"
    return f"`{standing['label']}`", f"{100 * standing['score']:.1f}", behind, f"{standing['tokens_a_text']:.0f}"


def rounds(kept: Kept) -> str:
    """What each round of the choice computed, and what that saved."""
    rows = []
    for place, one in enumerate(kept["rounds"], 1):
        go_on = listed(one["kept"]) if len(one["kept"]) <= _NAMED else str(len(one["kept"]))
        if place == len(kept["rounds"]):
            go_on = ""
        rows.append((str(place), str(one["items"]), str(one["designs"]), f"{one['tokens']:,}", go_on))
    table = markdown(("round", "items", "designs", "tokens", "designs that continue"), rows)
    whole = f"All designs on all items, the other half included, would have been about {kept['grid_tokens']:,}."
    if not kept["held_out"]:
        whole = f"All designs on all items would have been about {kept['grid_tokens']:,}."
    return f"{table}\nThe command computed {kept['tokens']:,} tokens. {whole}\n"


def prompt(kept: Kept) -> str:
    """The prompt that was chosen, with its solved examples."""
    (name,) = Design.parse(kept["design"]).prompts
    return f"```text\n{find_prompt(name).template}\n```\n"
