"""Fixtures: pico models and a pico tokenizer, built here, offline, in seconds; shapes in annotations are checked."""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")
# One thread, set before any library starts a pool: a forked process hangs in a pool that it did not inherit, and sums are
# the same on every machine.
os.environ["OMP_NUM_THREADS"] = "1"
# Tests compare bits, in the precision of a CPU. On a machine with GPUs they are the same as on one without. `make gpu` tests GPUs.
if "UNMASK_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import typer.main
from hypothesis import settings

# The command line is built once a process, as for a user, and not once a run of it: hundreds of tests run it.
typer.main.get_command = functools.cache(typer.main.get_command)


def _without_the_disk(fd: Any) -> None:
    """A sync that does not wait for the disk: no test cuts the power of this machine. A closed file still raises."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = _without_the_disk  # abuse/power.py counts the calls and plays the power cuts

from tests.shapes import check_shapes

check_shapes()  # before anything of the package is imported

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

torch.set_num_threads(1)
# A forked process makes torch's pool of threads anew. torch does it at the first use and without a lock: two threads that load
# weights at once then fail with "Invalid thread pool". So each forked process does it first, while it has one thread.
os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
# The lock of tqdm is a semaphore that forked processes share. A test that kills one while it makes a bar would leave the semaphore
# taken, and the next bar of this process would wait for ever. So each forked process has a lock of its own. The bars of other libraries
# are subclasses. They take this lock if it is there before they make one.
tqdm.get_lock()
os.register_at_fork(after_in_child=lambda: tqdm.set_lock(threading.RLock()))
if not torch.accelerator.is_available():
    # At each seed, torch writes down the stack for three accelerators that might start later: milliseconds, and kept for ever.
    for library in (torch.cuda, torch.cuda.random, torch.xpu, torch.xpu.random, torch.mtia):
        library._lazy_call = lambda *_, **__: None

from tests.families import EACH_KIND, FAMILIES, Family
from tests.proofs import ALL
from unmask.embedder import Embedder

# Files whose tests train, start processes or simulate: most of the time. `make fast` leaves them out.
SLOW = (
    "abuse/", "bulk/test_kills", "bulk/test_memory", "bulk/test_on_ray", "bulk/test_workers",
    "evaluation/test_compare", "evaluation/test_damage", "evaluation/test_kills", "evaluation/test_power",
    "evaluation/test_recommend", "evaluation/test_word_scores", "experts/test_abilities",
    "experts/test_mixing", "experts/test_reliability", "experts/test_sandbox", "experts/test_training",
    "models/test_model_types", "moe/routing/",
    "probing/test_analyses", "probing/test_clusters", "probing/test_command", "probing/test_prefixes", "reporting/test_browser",
    "moe/atlas/test_browser",
    "reporting/test_exports", "reporting/test_page", "saving/test_exports", "saving/test_folder", "saving/test_own_files",
    "statistics/test_power",
    "studies/", "tasks/test_benchmarks", "tasks/test_cutting", "tasks/test_mteb", "test_benchmarks", "training/test_damage",
    "training/test_distributed", "training/test_leakage", "training/test_resume", "training/test_train", "training/test_sharding",
    "training/test_train_cli", "ui/test_browser",
)  # fmt: skip
LONGEST = (
    "bulk/test_on_ray",
    "test_benchmarks",
    "test_docs",
    "test_real",
    "test_wheel",
    "experts/lessons/test_pool",
    "models/test_model_types",
    "training/test_distributed",
    "studies/",
    "abuse/test_power",
)
"""Files with tests of more than ten seconds. They go first: at the end, one process would wait for the other."""
REAL_DATA = Path(os.environ.get("UNMASK_DATA", Path(__file__).parents[2] / "shared" / "data"))
QUICK_FAMILIES = ("llama", "olmoe")
"""The model families of `make fast`: a dense one and a mixture of experts."""


collect_ignore = [] if "UNMASK_TEST_GPU" in os.environ else ["gpu"]


def pytest_runtest_setup() -> None:
    """Commands under test find no data but those that the test gives them."""
    os.environ.pop("UNMASK_DATA", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _file(item).startswith(SLOW) or _of_families_beyond(item, QUICK_FAMILIES):
            item.add_marker(pytest.mark.slow)
    if not ALL:
        kept = set(map(id, _sample(items)))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]
    items.sort(key=lambda item: not _file(item).startswith(LONGEST))


def _sample(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of `make test`: of a test marked `sample(n)`, n cases spread evenly; one family of each mechanism."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not _of_families_beyond(item, EACH_KIND):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_test in cases.values():
        marker = of_test[0].get_closest_marker("sample")
        number = marker.args[0] if marker else len(of_test)
        yield from of_test if number >= len(of_test) else (of_test[k * len(of_test) // number] for k in range(number))


def _file(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


def _of_families_beyond(item: pytest.Item, families: tuple[str, ...]) -> bool:
    """Whether a test is about a model family that is not one of these."""
    values = getattr(item, "callspec", None)
    names = (
        {getattr(value, "name", value) for value in values.params.values() if isinstance(value, (str, Family))}
        if values
        else set()
    )
    return bool(names & FAMILIES.keys() - set(families))


settings.register_profile("unmask", deadline=None)  # a busy machine is no fault
settings.load_profile("unmask")

TEXTS = [
    "A man plays a guitar.",
    "Someone makes music on a stage while a small crowd listens.",
    "The stock market fell.",
    "x",
    "Two dogs run across the wet grass, chasing a red ball that nobody threw.",
    "A man plays a guitar.",
]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level BPE tokenizer of 512 entries, fast, with offsets; pad 0, bos 1 (not added), eos 2."""
    return make_tokenizer()


def make_tokenizer(add_bos: bool = False) -> Any:
    """The pico tokenizer; with add_bos, it puts a beginning-of-sequence token before a text."""
    from tokenizers import processors

    from unmask.models.bundled import pico_tokenizer

    tokenizer = pico_tokenizer()
    if add_bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] | trim }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return tokenizer


@pytest.fixture(scope="session")
def pico(tokenizer: Any) -> Callable[..., Embedder]:
    """Make an embedder of a pico model: pico("causal/eol/last") is dense, pico(..., family="olmoe") a mixture of experts."""

    def make(design: str = "causal/plain/mean", family: str = "llama", **options: Any) -> Embedder:
        return Embedder.from_model(FAMILIES[family].build(), tokenizer, design, **options)

    return make


@pytest.fixture(scope="session")
def pico_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A pico model on disk, as a user would have it."""
    folders: dict[str, Path] = {}

    def make(family: str = "llama") -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            FAMILIES[family].build().save_pretrained(folders[family])
            tokenizer.save_pretrained(folders[family])
        return folders[family]

    return make


@pytest.fixture(scope="session")
def language_model_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A pico model on disk with its language-model head."""
    folders: dict[str, Path] = {}

    def make(family: str = "llama") -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            FAMILIES[family].build_language_model().save_pretrained(folders[family])
            tokenizer.save_pretrained(folders[family])
        return folders[family]

    return make


@pytest.fixture(scope="session")
def _base(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every `base` is a copy of."""
    from tests.moe.mixture.models import language_model

    folder = tmp_path_factory.mktemp("base")
    language_model(vocab_size=512, max_position_embeddings=512).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def base(_base: Path, tmp_path: Path) -> Path:
    """A pico causal language model on disk, a copy for each test, since tests change it."""
    return Path(shutil.copytree(_base, tmp_path / "base"))


@pytest.fixture
def sketched() -> Iterator[None]:
    """Figures are sketched and not drawn, for a test that looks at none. What a fixture of a wider scope wrote is drawn."""
    from tests.sketches import sketching

    with sketching():
        yield


@pytest.fixture(scope="session", autouse=True)
def _fits_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fits of the models of tests do not stay in the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.embedder.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The data sets of docs/data.md, from UNMASK_DATA or ../shared/data. Without that folder the test is skipped."""
    if not REAL_DATA.is_dir():
        pytest.skip("needs a folder with the sets of docs/data.md (UNMASK_DATA)")
    return REAL_DATA


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium. The tests that use it skip without one (tests/chromium.py)."""
    from tests.chromium import launched

    with launched() as found:
        yield found


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True)
def _logger_of_a_program() -> None:
    """The logger is as for a program that imports unmask. A test that runs a command leaves it as the command line has it."""
    logger = logging.getLogger("unmask")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def _light_collections() -> None:
    """Spare the garbage collector what imports left: millions of objects, which every training step of a test would visit anew."""
    gc.collect()
    gc.freeze()
