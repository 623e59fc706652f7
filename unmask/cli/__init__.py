"""The command line. Each command turns options into settings, makes one call and prints; importing this module loads no torch."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
import warnings
from typing import Annotated, Any

import typer

from unmask.cli.command import Command, Group
from unmask.cli.compare import compare, recommend
from unmask.cli.embed import embed
from unmask.cli.evaluate_lm import evaluate_lm
from unmask.cli.experts import expert, seeds, specialise
from unmask.cli.export import export
from unmask.cli.listings import designs, models, tasks
from unmask.cli.mine import leaks, mine
from unmask.cli.mixtures import merge, mix, upcycle
from unmask.cli.options import with_settings
from unmask.cli.probe import probe
from unmask.cli.report import report
from unmask.cli.reproduce import reproduce
from unmask.cli.search import index, search
from unmask.cli.serve import serve
from unmask.cli.train import recipes, train
from unmask.cli.ui import ui
from unmask.errors import UnmaskError, not_installed
from unmask.io.terminal import complain, escape_unencodable, show_messages, visible


class Commands(Group):
    """The commands. Reports an EOFError as a damaged file; click would report it as an abort by the user."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if os.environ.get("RANK", "0") == "0":  # in distributed training, only the first process prints
            show_messages()
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise UnmaskError(f"A file ended too early, so it is damaged: {str(error) or 'unknown name'}.") from error


app = typer.Typer(
    name="unmask",
    cls=Commands,
    help="Your LLM is secretly an embedding model: read it in every way, and see which is best for your task.",
    epilog="Example: unmask compare -m smollm2 -d mean,prompteol,subject-mean-z -t starter",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command, example in (
    (compare, "unmask compare -m smollm2 -d mean,prompteol,subject-mean-z -t starter -o my-results"),
    (report, "unmask report my-results"),
    (recommend, "unmask recommend -m smollm2 -t starter"),
    (embed, "unmask embed texts.jsonl -m smollm2 -o vectors.parquet"),
    (index, "unmask index texts.jsonl -m smollm2 -d mean -o my-index"),
    (search, 'unmask search my-index "how to reset a password" --mode hybrid'),
    (serve, "unmask serve smollm2 -d subject-mean-z,mean"),
    (ui, "unmask ui -m smollm2 --corpus texts.jsonl --open"),
    (export, "unmask export smollm2 --to onnx -o smollm2-onnx"),
    (mine, "unmask mine pairs.jsonl -m smollm2 -o triples.jsonl"),
    (leaks, "unmask leaks --train triples.jsonl --task my-task --task starter"),
    (train, "unmask train llm2vec --scale smoke -o my-embedder"),
    (upcycle, "unmask upcycle smollm2 -o smollm2-4x --experts 4"),
    (seeds, "unmask seeds gsm8k/train.jsonl -o math.jsonl --number 100 --held-out math-test.jsonl"),
    (specialise, "unmask specialise math -m smollm2 --seeds math.jsonl -o lessons/math"),
    (expert, "unmask expert math.jsonl -m smollm2 -o experts/math"),
    (mix, "unmask mix experts/math experts/code --lessons math=math.jsonl --lessons code=code.jsonl -o mixture"),
    (merge, "unmask merge experts/math experts/code -o merged --method ties --density 0.2"),
    (evaluate_lm, "unmask evaluate-lm -m smollm2 -m experts/math -m mixture --lessons math=math-test.jsonl"),
    (designs, "unmask designs"),
    (models, "unmask models"),
    (tasks, "unmask tasks"),
):
    app.command(cls=Command, epilog=f"Example: {example}")(with_settings(command))
app.add_typer(probe, name="probe")
app.add_typer(recipes, name="recipes")
app.add_typer(reproduce, name="reproduce")


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from unmask import __version__

        print(f"unmask {__version__}")
        raise typer.Exit


@app.callback()
def unmask(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of unmask itself."""


_SHAPE_LIMITS, _SHAPES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), "256"
"""How many batch shapes torch keeps compiled code for on a CPU, read at import. The default grows to gigabytes; 64 is slower."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def _report_thread_error(arguments: threading.ExceptHookArgs) -> None:
    """TensorBoard raises errors of its writer thread again in the main thread, so `main` reports a full disk."""
    if not (isinstance(arguments.exc_value, OSError) and arguments.exc_value.errno in _FULL):
        threading.__excepthook__(arguments)


def main() -> None:
    """Run the command line: exit code 2 and one sentence, not a traceback, for a user's mistake."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by unmask/__main__.py during imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    escape_unencodable()
    os.environ.setdefault("TQDM_DISABLE", "1")  # ours is enough
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for name in _SHAPE_LIMITS:
        os.environ.setdefault(name, _SHAPES)
    warnings.showwarning = lambda message, *_, **__: print(f"note: {visible(str(message))}", file=sys.stderr)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    threading.excepthook = _report_thread_error
    try:
        app()  # usage errors: typer exits with 2 as well
    except UnmaskError as error:
        complain(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        missing = not_installed(error.name or "")
        complain(str(missing)) if missing else traceback.print_exc()
        sys.exit(2)
    except BrokenPipeError:
        sys.stdout = None
    except OSError as error:
        if error.errno in _FULL:  # some libraries do not name the file
            complain(f"A file cannot be written: the disk may be full ({error.strerror}).")
        elif error.filename is None:  # not a path of the user
            traceback.print_exc()
        else:
            complain(f"'{error.filename}': {error.strerror}.")
        sys.exit(2)
    except Exception:  # Python would exit with 1, which means partial success
        traceback.print_exc()
        sys.exit(2)
