# SPDX-License-Identifier: Apache-2.0
"""A host for one comparison: link and fleet come up, the runs go by, all of it goes down."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from paceline.keys import KeyPair, read_boards, read_pair
from paceline.talk import Talk
from paceline_host.comparison import Comparison, first_credit, held
from paceline_host.epoch import next_epoch
from paceline_host.experiment import RunSettings
from paceline_host.fleet import LocalFleet
from paceline_host.link import HostLink
from paceline_host.patience import Patience
from paceline_host.peers import Peers, Terms
from paceline_host.server import Server

_IMAGES = ("torch", "numpy", "paceline.tasks.images")
_PRELOAD = {  # others: _IMAGES
    "linear": ("paceline.tasks.linear",),
    "era5": ("torch", "numpy", "paceline.tasks.era5"),
    "imdb": ("torch", "numpy", "paceline.tasks.imdb"),
}

# What DistributedDataParallel imports when the first is made: a second of a processor for each board.
_RANKS = ("torch._dynamo", "paceline_agent.workers.ddp")


def terms(run: RunSettings, runs_dir: Path | None) -> Terms:
    """Return what the sessions of a host use. `runs_dir`: of this host; None: its fleet is new, and so is it."""
    return Terms(
        host_epoch=next_epoch(runs_dir) if runs_dir is not None else 1,
        chunk_bytes=run.chunk_bytes,
        credit_bytes=first_credit(run.chunk_bytes),
        heartbeat_s=Patience(run.patience_s).waits["heartbeat_s"][0],
        patience_s=run.patience_s,
    )


def run_embedded(comparison: Comparison, folder: Path, talk: Talk) -> bool:
    """Work through a comparison below `folder`; True when all its runs finished. Raises PacelineError."""
    experiment = comparison.experiment
    with ExitStack() as life:
        life.enter_context(held(folder))
        fleet, keys, boards = _fleet(comparison, folder, life)
        comparison.check(folder, boards)
        link = HostLink(experiment.fleet.listen, keys, boards, talk.warning)
        life.callback(link.close)
        server = Server(link, Peers(terms(experiment.run, folder.parent if fleet is None else None)), fleet, talk)
        if fleet is not None:
            talk(f"starting {len(boards)} emulated boards (logs in {fleet.folder})")
            fleet.start(link.endpoint, lambda: comparison.stopping)
        else:
            talk(f"listening on {link.endpoint} for {', '.join(boards)}")
        server.start()
        life.callback(server.close)
        return comparison.work(folder, server, boards)


def _fleet(
    comparison: Comparison, folder: Path, life: ExitStack
) -> tuple[LocalFleet | None, KeyPair, Mapping[str, str]]:
    experiment = comparison.experiment
    if comparison.profile is None:
        keys = Path(experiment.fleet.keys)
        return None, read_pair(keys / "host.key"), read_boards(keys / "boards")
    home = (folder / "fleet").absolute()  # so that no argument of an agent can look like an option
    home.mkdir(exist_ok=True)
    preload: tuple[str, ...] = _PRELOAD.get(str(experiment.task["name"]), _IMAGES)
    if experiment.run.regime in ("ddp", "hfl"):
        preload += _RANKS
    fleet = LocalFleet(comparison.profile, home, comparison.data_dir, preload)
    life.callback(fleet.close)
    return fleet, fleet.host_keys, fleet.boards
