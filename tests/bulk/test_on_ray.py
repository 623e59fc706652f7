"""On a Ray cluster: a machine that is killed in the middle costs nothing but time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bulk.corpora import PICO, content, job_of, run, write_corpus
from unmask.bulk import on_ray
from unmask.bulk.folder import embed_folder
from unmask.bulk.on_ray import OnRay, _share
from unmask.bulk.team import ShardResult

ray = pytest.importorskip("ray")
HEAD = {
    "num_cpus": 0,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,  # its processes are most of a cluster's start
    "_system_config": {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
    },  # a lost machine is noticed in seconds
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head computes nothing."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args=HEAD)
    ray.init(address=made.address, log_to_driver=False, configure_logging=False)
    yield made
    ray.shutdown()
    made.shutdown()


class Unlucky(OnRay):
    """A team on a machine that is killed after its first shard. Another one joins."""

    def __init__(self, cluster: Any, machine: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cluster, self.machine = cluster, machine

    def embed(self, shards: Any, digest: str, progress: Any) -> Iterator[ShardResult]:
        for result in super().embed(shards, digest, progress):
            if self.machine is not None:
                self.cluster.remove_node(self.machine, allow_graceful=False)
                self.machine = None
                self.cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
            yield result


def test_a_machine_that_is_killed_in_the_middle_changes_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    run(job_of(Path(), shard_rows=4))
    Path("out").rename("undisturbed")
    machine = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    job = job_of(Path(), shard_rows=4)
    team = Unlucky(cluster, machine, job, PICO, "local")
    assert len(embed_folder(job, lambda: team).shards) == 30
    assert team.machine is None, "no machine was killed"
    assert content(Path("out")) == content(Path("undisturbed"))


def test_a_shard_that_ends_its_process_or_fails_is_reported(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an actor that imports nothing: starting a real one takes half a minute on a busy machine, and here four are started."""
    starts = tmp_path / "starts"

    class Frail:  # local, so that Ray sends the class itself and imports no module of ours
        def __init__(self, *_: Any) -> None:
            pass

        def embed(self, shard: str, digest: str) -> str:
            if shard == "deadly":
                with starts.open("a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            if shard == "faulty":
                raise ValueError("a mistake")
            return f"{shard} under {digest}"

    monkeypatch.setattr(on_ray, "_Actor", Frail)
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    team: Any = OnRay(None, SimpleNamespace(options={}), "local", 1)  # type: ignore[arg-type]
    assert dict(team.embed(["faulty", "deadly", "good"], "a digest", None)) == {
        "faulty": "ValueError: a mistake",
        "deadly": "it was started 3 times, and ended its process each time",
        "good": "good under a digest",
    }
    assert starts.read_text() == "xxx"


class FakeRay:
    """A cluster of these machines."""

    def __init__(self, *machines: dict[str, float]) -> None:
        self.machines = machines

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": machine} for machine in self.machines]

    def cluster_resources(self) -> dict[str, float]:
        return {name: sum(machine.get(name, 0) for machine in self.machines) for name in ("CPU", "GPU")}


@pytest.mark.parametrize(
    ("machines", "workers", "device", "expected"),
    [
        ([{"CPU": 8.0}, {"CPU": 4.0}, {}], None, "auto", (2, {"num_cpus": 4})),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 2.0}], None, "auto", (4, {"num_gpus": 1, "num_cpus": 1})),
    ],
)
def test_workers_share_the_cluster(machines: Any, workers: Any, device: str, expected: Any) -> None:
    assert _share(FakeRay(*machines), workers, device) == expected
