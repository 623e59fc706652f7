"""The command line. Each command is a thin shell around the library; importing this module loads no torch."""

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

from unmask.cli.compare import compare
from unmask.cli.embed import embed
from unmask.cli.evaluate_lm import evaluate_lm
from unmask.cli.experts import expert, seeds, specialise
from unmask.cli.export import export
from unmask.cli.index import index
from unmask.cli.leaks import leaks
from unmask.cli.listings import designs, models, tasks
from unmask.cli.mine import mine
from unmask.cli.mixtures import merge, mix
from unmask.cli.options import with_model_options
from unmask.cli.outputs import Command, Group
from unmask.cli.probing import probe
from unmask.cli.recommend import recommend
from unmask.cli.report import report
from unmask.cli.reproduce import reproduce
from unmask.cli.search import search
from unmask.cli.serve import serve
from unmask.cli.train import recipes, train
from unmask.cli.ui import ui
from unmask.cli.upcycle import upcycle
from unmask.errors import UnmaskError, not_installed
from unmask.io.terminal import complain, escape_unencodable, show_messages, visible


class Commands(Group):
    """The commands. An end of file inside of one is a damaged file: click would take it for a user who gave up."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if os.environ.get("RANK", "0") == "0":  # of several processes that train together, the first speaks
            show_messages()
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise UnmaskError(f"A file ended too early, so it is damaged: {str(error) or 'its name is not known'}.") from error


app = typer.Typer(
    name="unmask",
    cls=Commands,
    help="Your LLM is secretly an embedding model: read it in every way, and see which is best for your task.",
    epilog="Example: unmask compare -m smollm2 -d mean,prompteol,echo -t starter",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command, example in (
    (compare, "unmask compare -m smollm2 -d mean,prompteol,echo -t starter -o my-results"),
    (report, "unmask report my-results"),
    (recommend, "unmask recommend -m smollm2 -t starter"),
    (embed, "unmask embed texts.jsonl -m smollm2 -d prompteol -o vectors.parquet"),
    (index, "unmask index texts.jsonl -m smollm2 -d mean -o my-index"),
    (search, 'unmask search my-index "how to reset a password" --hybrid'),
    (serve, "unmask serve smollm2 -d prompteol,mean"),
    (ui, "unmask ui -m smollm2 -d prompteol,mean --corpus texts.jsonl --open"),
    (export, "unmask export smollm2 -d prompteol --to onnx -o smollm2-onnx"),
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
    app.command(cls=Command, epilog=f"Example: {example}")(with_model_options(command))
app.add_typer(probe, name="probe")
app.add_typer(recipes, name="recipes")
app.add_typer(reproduce, name="reproduce")


def _show_version(wanted: bool) -> None:
    if wanted:
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
"""torch on a CPU reads these when it is imported. It keeps compiled code for so many shapes of a batch. By its own limit this code grows
to gigabytes. 64 shapes are slower, since some are compiled again."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def _told_by_the_main_thread(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread, and raises in the main thread again what failed there. So a full disk is told once, by `main`."""
    if not (isinstance(failed.exc_value, OSError) and failed.exc_value.errno in _FULL):
        threading.__excepthook__(failed)


def main() -> None:
    """Run the command line: exit code 2 and one sentence for a user's mistake, no traceback."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as it is while this module is imported (unmask/__main__.py)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    escape_unencodable()
    os.environ.setdefault("TQDM_DISABLE", "1")  # one progress bar is enough, and it is ours
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for name in _SHAPE_LIMITS:
        os.environ.setdefault(name, _SHAPES)
    warnings.showwarning = lambda message, *_, **__: print(f"note: {visible(str(message))}", file=sys.stderr)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    threading.excepthook = _told_by_the_main_thread
    try:
        app()  # a mistake in the usage itself is told by typer, which exits with 2 as well
    except UnmaskError as error:
        complain(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        lack = not_installed(error.name or "")
        complain(str(lack)) if lack else traceback.print_exc()
        sys.exit(2)
    except BrokenPipeError:
        sys.stdout = None
    except OSError as error:
        if error.errno in _FULL:  # some libraries do not say which file they wrote
            complain(f"A file cannot be written: the disk may be full ({error.strerror}).")
        elif error.filename is None:  # not about a path that was given
            traceback.print_exc()
        else:
            complain(f"'{error.filename}': {error.strerror}.")
        sys.exit(2)
    except Exception:  # by itself, Python would exit with 1, which means that a part was done
        traceback.print_exc()
        sys.exit(2)
