"""The tests mirror the rooms: a module is tested by the module of the same name, or by the one that is named here."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "unmask"

# whole rooms or parts of rooms that one test module holds to a contract, member by member or by commands
FAMILIES = {
    "cli/probing": "probing/test_command.py",
    "cli": "cli/test_cli.py",
    "experts/abilities": "experts/test_abilities.py",
    "saving/exports": "saving/test_exports.py",
    "search/stores": "search/test_stores.py",
    "studies/claims": "studies/test_claims.py",
    "studies/embedders": "studies/test_embedders.py",
    "studies/routers": "studies/test_routers.py",
    "studies/self_moe": "studies/test_self_moe.py",
    "tasks/kinds": "tasks/test_task.py",
    "tasks/mteb": "tasks/test_mteb_tasks.py",
    "training/stages": "training/test_stages.py",
}

# modules that are tested through what uses them
ELSEWHERE = {
    "bulk/document_encoder": "bulk/test_folder.py",
    "bulk/documents": "bulk/test_folder.py",
    "bulk/embed_shard": "bulk/test_folder.py",
    "bulk/job": "bulk/test_single_file.py",
    "bulk/kept_fit": "bulk/test_folder.py",
    "bulk/manifest": "bulk/test_folder.py",
    "bulk/repeated_ids": "bulk/test_folder.py",
    "bulk/report": "bulk/test_folder.py",
    "bulk/shards": "bulk/test_folder.py",
    "bulk/team": "bulk/test_folder.py",
    "bulk/vector_writers": "bulk/test_single_file.py",
    "designs/presets": "designs/test_design.py",
    "encoding/other_names": "test_embedder.py",
    "encoding/precision": "encoding/test_quantization.py",
    "encoding/texts": "test_embedder.py",
    "evaluation/racing": "evaluation/test_recommend.py",
    "evaluation/reference_rows": "evaluation/test_compare.py",
    "evaluation/word_level": "evaluation/test_word_scores.py",
    "experts/balance": "experts/test_mixing.py",
    "experts/expert": "experts/test_training.py",
    "experts/joint_training": "experts/test_mixing.py",
    "experts/lessons/domain": "experts/lessons/test_specialise.py",
    "experts/lessons/filters": "experts/lessons/test_specialise.py",
    "experts/lessons/packed_attention": "experts/lessons/test_generation.py",
    "experts/likelihood": "experts/test_training.py",
    "experts/names": "experts/test_mixing.py",
    "experts/prototypes": "experts/test_mixing.py",
    "experts/router": "experts/test_mixing.py",
    "experts/shared_prefix": "experts/abilities/test_answer_likelihood.py",
    "mixture/any_model": "mixture/test_mixture_folder.py",
    "mixture/expert_folder": "mixture/test_mixture_folder.py",
    "mixture/expert_linear": "mixture/test_mixture.py",
    "mixture/final_router": "mixture/test_mixture.py",
    "mixture/gating": "mixture/test_mixture.py",
    "mixture/model": "mixture/test_mixture.py",
    "mixture/names": "mixture/test_merging.py",
    "mixture/overrides": "mixture/test_mixture.py",
    "mixture/running_mean": "mixture/test_mixture.py",
    "models/attention_function": "training/test_dropout.py",
    "models/digests": "models/test_identity.py",
    "models/pico": "models/test_bundled.py",
    "models/provenance": "saving/test_folder.py",
    "models/routing": "encoding/test_backbone.py",
    "models/upcycled_folder": "models/test_upcycling.py",
    "probing/routing/readouts": "probing/routing/test_measures.py",
    "probing/routing/record": "probing/routing/test_recording.py",
    "reporting/atlas/experts": "reporting/atlas/test_aggregate.py",
    "reporting/atlas/tally": "reporting/atlas/test_aggregate.py",
    "reporting/plotting": "reporting/test_figures.py",
    "reporting/probe_figures": "probing/test_won_pairs.py",
    "reporting/report_folder": "reporting/test_page.py",
    "reporting/svg": "reporting/test_figures.py",
    "reporting/template": "reporting/test_page.py",
    "saving/load_model": "probing/test_masked.py",
    "search/embedding": "search/test_index.py",
    "search/hits": "search/test_index.py",
    "search/queries": "search/test_lexical.py",
    "search/record": "search/test_build.py",
    "search/vectors": "search/test_stores.py",
    "serving/bodies": "serving/test_gate.py",
    "serving/connection": "serving/test_gate.py",
    "serving/limits": "serving/test_gate.py",
    "serving/metrics": "serving/test_app.py",
    "serving/page": "serving/test_app.py",
    "studies/learning_plan": "studies/test_self_moe.py",
    "studies/plans": "studies/test_routers.py",
    "studies/results_file": "studies/test_results.py",
    "tasks/columns": "tasks/test_task.py",
    "tasks/find": "tasks/test_task.py",
    "tasks/folder": "tasks/test_task.py",
    "tasks/sampling": "tasks/test_subsets.py",
    "training/card": "training/test_run.py",
    "training/difference": "test_paper_scale.py",
    "training/loop": "training/test_run.py",
    "training/processes": "training/test_distributed.py",
    "training/progress": "training/test_train_cli.py",
    "probing/routing/expert_record": "probing/routing/test_expert_losses.py",
    "training/run_folder": "training/test_resume.py",
    "training/same_run": "training/test_resume.py",
    "training/stage_run": "training/test_run.py",
    "training/recipe_run": "training/test_train_cli.py",
    "training/sources": "training/test_data.py",
    "training/targets": "training/test_collate.py",
    "ui/requests": "ui/test_app.py",
    "ui/server": "ui/test_app.py",
    "ui/work": "ui/test_app.py",
}
MODULES = sorted(
    file.relative_to(PACKAGE).with_suffix("").as_posix() for file in PACKAGE.rglob("*.py") if not file.stem.startswith("__")
)


def mirrored(module: str) -> Path:
    folder, _, name = module.rpartition("/")
    return TESTS / folder / f"test_{name}.py"


def test_a_module_is_tested_by_its_namesake_or_by_the_one_named_here() -> None:
    own = {module for module in MODULES if mirrored(module).is_file()}
    families = {module for module in MODULES if any(module.startswith(f"{family}/") for family in FAMILIES)}
    untested = set(MODULES) - own - families - set(ELSEWHERE)
    assert not untested, "add a test module of the same name, or name the one that covers it"
    assert not own & set(ELSEWHERE), "these have tests of their own: take them out of the list"


def test_the_list_names_modules_that_exist() -> None:
    assert set(ELSEWHERE) <= set(MODULES)
    assert all((PACKAGE / family).is_dir() for family in FAMILIES)
    assert all((TESTS / file).is_file() for file in (*ELSEWHERE.values(), *FAMILIES.values()))
