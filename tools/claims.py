"""Write docs/claims.md from the results of studies, which lie in docs/measured.

    python -m tools.claims                                  write the page again
    python -m tools.claims STUDY/MODEL/results.json ...     take these results in, then write the page
    python -m tools.claims STUDY/MODEL/results.json=200     the same, beside another result of this model: the name ends with 200

`tools.kept_studies` says what is kept of a result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.kept_studies import RESULTS, keep
from unmask.io.terminal import counted
from unmask.studies.claims.claim import VERDICTS, Claim, Finding
from unmask.studies.claims.tables import HERE, MEANINGS, NOTES, claims_sheet, counts, said_of_all, verdict_counts
from unmask.studies.embedders.plan import EmbeddersPlan
from unmask.studies.engine import PACKAGES, load_plan
from unmask.studies.routers.configurations import CONFIGURATIONS
from unmask.studies.routers.configurations import rests_on as digests_of_configurations
from unmask.studies.routers.plan import RoutersPlan
from unmask.studies.self_moe.plan import VARIANTS, SelfMoEPlan
from unmask.studies.self_moe.plan import rests_on as digests_of_mixtures
from unmask.studies.sheet import Sheet

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "claims.md"
PAPERS: Final = {
    "llm2vec": "LLM2Vec",
    "pooling-and-attention": "Pooling and Attention",
    "moee": "MoEE",
    "self-moe": "Self-MoE",
    "routers": "Router configurations",
}
NAMES: Final = {
    "llm2vec": (
        "`uni` is the model as it is, with causal attention. `bi` is the same model with the mask taken off. `mntp` is `bi`, trained to "
        "predict masked tokens. `full` is `mntp`, trained further by SimCSE. All are read by the mean over the tokens, unless the name "
        "says another pooling."
    ),
    "pooling-and-attention": (
        "All designs are trained by one recipe on the same pairs. Design 1 reads the state of the EOS token. Design 2 learns which tokens "
        "of the last layer to read, design 3 which layers of the EOS token. All three have causal attention. Design 4 is design 2 with "
        "bidirectional attention. Design 5 has bidirectional attention, too: it takes the mean over the tokens of each layer, and learns "
        "which layers to read."
    ),
    "moee": (
        "Two mixtures were measured. SmolLM2 is a dense model. For this study, each of its MLPs was copied into four experts (upcycling), "
        "and the mixture was trained further. MiXSE is a mixture of four LoRA experts. It was made by the study of "
        "[Self-MoE](#self-moe) with 200 lessons a domain, and is read as it is. `hidden` is the hidden state of the last token of "
        "PromptEOL. `routing` is the routing weights of that token in all layers. `concat` is both side by side. `sum` is the similarity "
        "of hidden states plus alpha times that of routing weights. Alpha is 1, unless the name has another. With `auto`, alpha is chosen "
        "without labels. `-z` means standardised (each part, if there are two). `no prompt` reads the last token of the text itself. "
        "Three comparisons differ in this:\n\n"
        "- `sum` against `hidden`: nothing is standardised, as in the formula of the paper.\n"
        "- `sum-z` against `hidden`: the sum is standardised, and the hidden state beside it is not, as in the code of the paper.\n"
        "- `sum-z` against `hidden-z`: both are standardised. Only this comparison is fair. The paper does not make it.\n\n"
        "[Experiments](experiments.md#moees-claims) says what the verdicts mean together."
    ),
    "self-moe": (
        "MiXSE is a mixture of four LoRA experts (knowledge, reasoning, math, coding) with one shared router. The lower the loss on "
        "held-out responses, the better. In the paper, the model writes its own lessons. Most claims below were tested on lessons that "
        "people wrote, and say so: they answer a question of our own. The paper's condition was measured, too:\n\n{self_written}\n"
        "In the run with 200 lessons, experts were trained on an NVIDIA H200 "
        "([more](experiments.md#what-self-written-lessons-are-worth-and-what-is-forgotten)).\n\n"
        "- `3: and math` is a mixture of three experts: knowledge, reasoning and math. Names like this one have the number of experts.\n"
        "- `oracle routing` gives each text the expert of its domain. `layer routers` has a router for each block. `MiXSE, all` uses all "
        "experts for each token, and `MiXSE, random` random ones.\n"
        "- `trained top-1`: the router learned with one expert acting. `joint top-1`: experts and router learned together, with one expert "
        "acting.\n"
        "- TIES and DARE merge the weights of the experts into one model.\n"
        "- `renormalised` means full strength. The gates of the router do not add up to 1, so experts act below full strength. Here, the "
        "gates are scaled to add up to 1.\n"
        "- `multiple choice` means [tests as a choice](experts.md#tests-as-a-choice)."
    ),
    "routers": (
        "I(D;E) says how well the first expert of a token tells the domain of its text: 0 is chance, 1 is the most that "
        "so many domains and experts allow. The gain says by how much a mixture predicts held-out responses better than its base. "
        "[The study of routers](router-study.md) explains the configurations."
    ),
}
"""What the names in the claims of each study mean."""
_CHOSEN: Final = {"models", "seeds", "fresh_seeds", "only", "on", "configurations", "ablations", "claims", "differences", "how"}
"""Parts of a plan that are not compared. A command may choose some of them. Some are words, and claims stand in results anyway.

Results of mixtures keep less of their plan, and name tasks with their revision: the parts that both have are compared.
"""
_WORDS: Final = {"where", "says", "how"}
"""What a claim has in words. The rest says what is compared, and how."""
_NAMED: Final = 20
"""So many sets of data are named on the page."""
SYSTEMS: Final = {
    "MiXSE": "MiXSE",
    "instance merging": "instance merging",
    "oracle routing": "the domain's own expert",
    "TIES": "TIES",
    "linear": "linear merging",
}
"""Rows of the table "Written lessons" that are shown on the page, with their headers."""
UNRECORDED: Final = "It was measured before results said which recipes and configurations they rest on."
HEAD: Final = """# Claims

What papers claim of embedders made from language models, and what holds for small models.

{counts}

A verdict is one of these:

{meanings}

{overview}
## How to read the tables

Each table begins with the refuted and the undecided claims. Its columns:

{legend}

A row that is a question of reviewers or our own says so under "where".
A verdict is about the model of the command, at this scale. Where a command has one seed, the test knows nothing of other seeds.
Another seed, or another processor, may change a mean by several points ([measured](log.md)). A test takes other seeds into account
only if its column "test, n" says "several seeds".
Two studies may ask the same question, such as whether a shared router is better. They measure it on other lessons and with other
seeds, so their verdicts may differ.

**This page is generated.** The claims are in the plans of the studies (`unmask/studies`). The verdicts come from the results in
`docs/measured`. `python -m tools.claims` writes the page. A test fails if the page does not follow from plans and results.

To measure a paper again, run its command. [`DATA`](data.md) is a folder of public data sets. `unmask report` then
makes [a page with a plot of each claim](report.md#the-claims-of-a-study). [Experiments](experiments.md) has earlier measurements,
with tables that were typed by hand.
"""


def plan_of(study: str, scale: str = "small") -> EmbeddersPlan | RoutersPlan | SelfMoEPlan:
    """The plan of a study at a scale, as it is now."""
    plan: EmbeddersPlan | RoutersPlan | SelfMoEPlan = load_plan(study, scale)
    return plan


def planned(study: str) -> Sequence[Claim]:
    """The claims of a study, as its plan has them now."""
    return plan_of(study).claims


def results() -> dict[str, list[dict[str, Any]]]:
    """The results of each study. The one that counts is the first: that of the first model of the plan, else the one that measured most."""
    known: dict[str, list[dict[str, Any]]] = {study: [] for study in PAPERS}
    for file in sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        known[content["study"]].append({**content, "place": f"measured/{file.stem}"})
    return {study: sorted(of_study, key=partial(_rank, study)) for study, of_study in known.items()}


def _rank(study: str, result: dict[str, Any]) -> tuple[bool, int]:
    """Less for a result that counts more."""
    measured = sum(finding.verdict not in ("not measured", "not testable here") for finding in _kept_findings(result))
    return result["model"] != Path(plan_of(study).models[0]).name, -measured


def findings(result: dict[str, Any]) -> list[Finding]:
    """The claims of a result with their verdicts, in the words that the plan has for them now, and those that it does not have."""
    now = {claim.id: claim for claim in planned(result["study"])}
    kept = {finding.claim.id: _in_words_of(now.get(finding.claim.id), finding) for finding in _kept_findings(result)}
    return list(kept.values()) + [_unmeasured(claim) for claim in now.values() if claim.id not in kept]


def _unmeasured(claim: Claim) -> Finding:
    return Finding(claim=claim, tests=(), verdict="not testable here" if claim.untestable else "not measured")


def _kept_findings(result: dict[str, Any]) -> list[Finding]:
    return [Finding.model_validate(finding) for finding in result["claims"]]


def _in_words_of(claim: Claim | None, finding: Finding) -> Finding:
    words = {name: getattr(claim, name) for name in _WORDS} if claim else {}
    return finding.model_copy(update={"claim": finding.claim.model_copy(update=words)})


def rests_on(study: str, scale: str) -> dict[str, str]:
    """Digests of the recipes, designs and configurations of a study at a scale, as they are now."""
    if study == "routers":
        return digests_of_configurations(CONFIGURATIONS)
    return digests_of_mixtures(VARIANTS) if study == "self-moe" else load_plan(study, scale).rests_on(scale)


def stale(study: str, result: dict[str, Any]) -> list[str]:
    """What a result has that is no longer so.

    Claims that it lacks, or that compare something else now, by their ids; parts of the plan; and recipes, designs and configurations,
    where it says which they were. A claim may be put into other words: they change no number. One that is not testable has no number.
    A claim that is newer may be lacking, if another result of the study has it: it is not measured here.
    """
    now = _testable(planned(study))
    then = _testable([finding.claim for finding in _kept_findings(result)])
    elsewhere = {finding.claim.id for other in results()[study] for finding in _kept_findings(other)}
    now = {name: claim for name, claim in now.items() if name in then or name not in elsewhere}
    old = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    plan, measured = plan_of(study, result.get("scale", "small")).model_dump(mode="json"), result["plan"]
    chosen = (_CHOSEN - {"seeds"}) | {"number"} if study == "self-moe" else _CHOSEN  # there, both are about lessons
    compared = plan.keys() - chosen if PACKAGES[study] == "embedders" else plan.keys() & measured.keys() - chosen - {"tasks"}
    if study == "self-moe" and measured["number"] != plan["number"]:  # steps are for so many lessons
        plan, measured = ({**one, "expert": {**one["expert"], "steps": None}} for one in (plan, measured))
    old += [part for part in plan if part in compared and _comparable(measured.get(part)) != _comparable(plan[part])]
    if recorded := result.get("rests_on"):
        digests = rests_on(study, result["scale"])
        old += [name for name, digest in recorded.items() if digests.get(name) != digest]
    return old


def _testable(claims: Sequence[Claim]) -> dict[str, dict[str, Any]]:
    """What each claim compares, by its id."""
    return {claim.id: claim.model_dump(exclude=_WORDS) for claim in claims if not claim.untestable}


def _comparable(part: Any) -> Any:
    """A part of a plan without the seeds of each model, which a command may choose, and without what is empty: it may be new."""
    if not isinstance(part, dict):
        return part
    return {name: _comparable(value) for name, value in part.items() if name != "seeds" and value not in (None, [])}


def page() -> str:
    """The page."""
    known = results()
    first = {title: _first(study, known[study]) for study, title in PAPERS.items()}
    parts = [
        HEAD.format(
            counts=f"**{counts([finding for found in first.values() for finding in found])}**",
            meanings="\n".join(f"- **{verdict.capitalize()}**: {meaning}" for verdict, meaning in MEANINGS.items()),
            overview="\n".join(_overview(first, known)),
            legend="\n".join("- **{}**:{}".format(*words.split(":", 1)) for words in (*NOTES, HERE)),
        )
    ]
    for study, title in PAPERS.items():
        parts += [f"## {title}\n", *_study(study, known[study])]
    return "\n".join(parts).rstrip() + "\n"


def _overview(first: dict[str, list[Finding]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """How many claims of each paper have each verdict, and which are refuted. A claim counts with one result of its study."""
    every = [(title, finding) for title, found in first.items() for finding in found]
    if refuted := [(title, finding) for title, finding in every if finding.verdict == "refuted"]:
        yield "These claims are refuted:\n"
        yield from (f"- [{title}](#{_anchor(title)}): {finding.claim.says}" for title, finding in refuted)
        yield ""
        yield (
            "Self-MoE is about lessons that the model writes itself. In [that condition](#self-moe), one run of one seed has MiXSE ahead "
            "of instance merging and of the domain's own expert, and level with TIES and linear merging.\n"
        )
    if elsewhere := list(_refuted_elsewhere(first, known)):
        yield "Further runs refute other claims:\n"
        yield from elsewhere
        yield ""
    yield "This table counts the first run of each study. If it did not measure a claim, a further run of its model counts.\n"
    models = {title: known[study][0]["model"] for study, title in PAPERS.items() if known[study]}
    lines = tuple(
        (
            f"[{title}](#{_anchor(title)})",
            models.get(title, ""),
            *(str(number) for number in (len(found), *verdict_counts(found).values())),
        )
        for title, found in first.items()
    )
    yield from Sheet("", ("paper", "model", "claims", *VERDICTS), lines).body().splitlines()
    own = [finding for _, finding in every if finding.claim.is_own]
    yield f"\n{len(own)} of the claims are questions of reviewers or our own ({_verdicts(own)}). The others are claims of papers.\n"
    open_here = [finding.here.verdict for _, finding in every if finding.verdict == "undecided" and finding.here]
    yield (
        f"{len(open_here)} undecided claims were tested on tasks in general. On the measured tasks alone, "
        f'{open_here.count("confirmed")} of them are confirmed and {open_here.count("refuted")} refuted: see the column "on these tasks".\n'
    )


def _refuted_elsewhere(first: dict[str, list[Finding]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What a further run of a study refutes, and the run that is counted does not."""
    for study, title in PAPERS.items():
        counted_here = {one.claim.id for one in first[title] if one.verdict == "refuted"}
        for result in known[study][1:]:
            for one in findings(result):
                if one.verdict == "refuted" and one.claim.id not in counted_here:
                    yield f"- [{title}](#{_anchor(title)}), on {result['model']}: {one.claim.says}"


def _verdicts(found: Sequence[Finding]) -> str:
    return counts(found).partition(": ")[2].removesuffix(".")


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _first(study: str, of_study: list[dict[str, Any]]) -> list[Finding]:
    """The claims that are counted: with their first result, or with another one of this model if only that one measured them."""
    if not of_study:
        return [_unmeasured(claim) for claim in planned(study)]
    first, *others = (findings(result) for result in of_study if result["model"] == of_study[0]["model"])
    measured = {one.claim.id: one for found in others for one in found if one.verdict != "not measured"}
    return [measured.get(one.claim.id, one) if one.verdict == "not measured" else one for one in first]


def _study(study: str, of_study: list[dict[str, Any]]) -> Iterator[str]:
    names = NAMES[study]
    yield (names.replace("{self_written}", _self_written(of_study)) if study == "self-moe" else names) + "\n"
    if not of_study:
        yield f"No result yet. `unmask reproduce {study} --scale small --data DATA -o {study}` measures these claims:\n"
        yield "\n".join(f"- {claim.says} {_where(claim)}" for claim in planned(study)) + "\n"
    for place, result in enumerate(of_study):
        found = findings(result)
        yield f"```\n{result['command']}\n```\n{_measured_on(study, result)} {counts(found)}"
        if place:
            yield _other_verdicts(found, findings(of_study[0]))
        else:
            yield "\n" + replace(claims_sheet(found), note=said_of_all(found)).markdown().partition("\n")[2]


def _self_written(of_study: list[dict[str, Any]]) -> str:
    """The losses of each system after learning self-written lessons, the paper's condition, beside human lessons."""
    suffixes = {"self-written": ", self-written", "human": ", human lessons"}
    tables = [(result, sheet) for result in of_study for sheet in result["tables"] if sheet["title"] == "Written lessons"]
    rows = []
    for result, sheet in tables:
        average = {row[0]: row[sheet["columns"].index("average")] for row in sheet["rows"]}
        run = f"[{Path(result['place']).name.removeprefix('self-moe-')}]({result['place']}.md#written-lessons)"
        for lessons, suffix in suffixes.items():
            rows.append((run, lessons, *(average.get(f"{system}{suffix}", "") for system in SYSTEMS)))
    note = (
        "Nats per token, averaged over the domains; lower is better. The first run has 33 lessons a domain, the others up to 200. Each "
        "has one seed, and these differences were not tested; no merge has a scale chosen on a development set. With 200 self-written "
        "lessons on SmolLM2, MiXSE beats instance merging and the domain's own expert, as in the paper, and is level with TIES and linear "
        "merging. On Gemma, too, it beats the domain's own expert; with 33 lessons it does not. "
        "With human lessons, instance merging and the domain's own expert are better."
    )
    return Sheet("", ("run", "lessons", *SYSTEMS.values()), tuple(rows)).body() + f"\n{note}\n"


def _measured_on(study: str, result: dict[str, Any]) -> str:
    """With what a result was measured, and where its tables are."""
    used = result["versions"]
    libraries = ", ".join(f"{name} {used[name]}" for name in ("unmask", "torch", "transformers") if name in used)
    older = "" if result.get("rests_on") else f" {UNRECORDED}"
    place = result["place"]
    with_what = f"{result['hardware']}, {libraries}"
    data = _data(result["data"], place)
    return f"On {result['model']}, {with_what}; [all tables]({place}.md). {data}{_seeds(study, result)}{older}"


def _seeds(study: str, result: dict[str, Any]) -> str:
    """A sentence, if a study of embedders trained with fewer seeds than its plan has now."""
    seeds = result.get("plan", {}).get("seeds")
    if PACKAGES[study] != "embedders" or seeds is None:
        return ""
    measured, now = len(seeds), len(load_plan(study, result["scale"], model=result["model"]).seeds)
    return f" It has {measured} of {now} planned seeds." if measured < now else ""


def _data(data: dict[str, str], place: str) -> str:
    """What was measured on."""
    names = f": {'; '.join(data)}" if len(data) <= _NAMED else ""
    return f"[{len(data)} sets of data, with their revisions]({place}.json){names}."


def _other_verdicts(found: Sequence[Finding], first: Sequence[Finding]) -> str:
    """The claims on which a further result says something else than the first result of its study."""
    verdicts = {one.claim.id: one.verdict for one in first}
    measured = [one for one in found if one.verdict not in ("not measured", "not testable here")]
    others = [one for one in measured if verdicts.get(one.claim.id) != one.verdict]
    lines = [f"- {one.verdict.capitalize()} (first run: {verdicts.get(one.claim.id)}): {one.claim.says}" for one in others]
    of_run = f"{counted(len(measured), 'claim')} that this run measured"
    said = (
        f"Of the {of_run}, {len(lines)} have another verdict than in the first run:"
        if lines
        else f"The {of_run} have the verdicts of the first run."
    )
    return "\n".join([f"{_same_way(found, first)}{said}", *lines]) + "\n"


def _same_way(found: Sequence[Finding], first: Sequence[Finding]) -> str:
    """A sentence: how many differences point the same way in two results of a study."""
    there, here = (
        {one.claim.question(test.than): test.difference for one in some for test in one.tests} for some in (first, found)
    )
    both = [(here[pair], there[pair]) for pair in here if pair in there]
    same = sum(one * other > 0 for one, other in both)
    if not both:
        return ""
    return (
        f"This run and the first run have {counted(len(both), 'difference')} in common. {same} of them point the same way. (A claim has "
        "one difference for each rival. One that stands in several claims counts once.) "
    )


def _where(claim: Claim) -> str:
    return f"({claim.where}). Not testable here: {claim.untestable}" if claim.untestable else f"({claim.where})"


def main(files: Sequence[str]) -> None:
    """Take results in, and write the page."""
    for given in files:
        keep(*_file_and_end(given), RESULTS)
    PAGE.write_text(page(), encoding="utf-8")


def _file_and_end(given: str) -> tuple[Path, str]:
    """A file of results, and the end of the name that it is kept under. A path may have a "=" of its own."""
    path, _, end = (given, "", "") if Path(given).is_file() else given.rpartition("=")
    if not Path(path).is_file():
        sys.exit(f"'{path or given}' is not a file. Name the results.json of a study.")
    return Path(path), end


if __name__ == "__main__":
    main(sys.argv[1:])
