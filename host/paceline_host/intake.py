# SPDX-License-Identifier: Apache-2.0
"""From what an operator submits to a ticket on disk: checked as a whole first, so that what is queued can be run. A
clerk of its own does it, because reading an experiment means its data set and sometimes torch.
"""

from __future__ import annotations

import itertools
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import settings, toml
from paceline.errors import PacelineError, SettingsError, StorageError
from paceline_host import operator_wire as w
from paceline_host import tickets
from paceline_host.comparison import Comparison, Watcher, new_folder
from paceline_host.desk import Caller
from paceline_host.experiment import DataSettings, Experiment, load_experiment, load_with_sheet
from paceline_host.host_config import HostConfig
from paceline_host.report_files import report_of
from paceline_host.run_files import EXPERIMENT, write_whole
from paceline_host.runs import list_runs
from paceline_host.tickets import Ticket

MANY_RUNS = 2000  # more do not fit into a message; the newest are told
_SILENT = Watcher(lambda text: None, lambda policy, machine, now_s: None, lambda folder, outcome: None)


def take_in(submit: w.Submit, by: str, number: int, config: HostConfig) -> Ticket:
    """Check an experiment, make its folder, put it there with its ticket; return that.

    Raises PacelineError, and then nothing is left of it.
    """
    text, overrides = submit.document.get("experiment"), submit.document.get("set", [])
    if not isinstance(text, str) or not _are_texts(overrides):
        raise SettingsError([f"{submit.name}: expected the text of an experiment file and a list of overrides"])
    experiment = _read(text, submit.name, overrides, config)
    if experiment.fleet.kind == "local":
        raise SettingsError(
            [
                f'{submit.name}.toml: fleet.kind = "local": a host daemon works with the boards that connect to it; '
                'set kind = "boards", or run the experiment without --host'
            ]
        )
    if experiment.data.folder and not Path(experiment.data.folder).is_absolute():
        raise SettingsError(
            [f"{submit.name}.toml: data.folder = {experiment.data.folder!r}: expected an absolute path on the host"]
        )
    experiment = fitted(experiment, config)
    Comparison(experiment, _SILENT)
    runs_dir = Path(config.runs_dir)
    folder = new_folder(runs_dir, submit.name)
    try:
        write_whole(folder / EXPERIMENT, settings.dump(experiment))
        submitted = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ticket = Ticket(folder.name, number, by, submitted)
        tickets.save(runs_dir, ticket)
    except StorageError:
        for path in folder.glob("*"):
            path.unlink(missing_ok=True)
        folder.rmdir()
        raise
    return ticket


def taken(ticket: Ticket, config: HostConfig) -> Experiment:
    """Return the experiment of a ticket, for this host as it is now. Raises PacelineError."""
    return fitted(load_experiment(Path(config.runs_dir) / ticket.name / EXPERIMENT), config)


def fitted(experiment: Experiment, config: HostConfig) -> Experiment:
    """Return an experiment with this host's link, keys and, where it names none, data."""
    fleet = replace(experiment.fleet, listen=config.listen, keys=config.keys)
    return replace(experiment, fleet=fleet, data=DataSettings(experiment.data.folder or config.data_dir))


def _read(text: str, name: str, overrides: list[str], config: HostConfig) -> Experiment:
    with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
        path = Path(scratch) / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_with_sheet(path, overrides, resolved=False)[0]
        except SettingsError as error:  # keys are the host's business here, so that they are missing is no fault
            faults = [fault for fault in error.errors if "fleet.keys is missing" not in fault]
            if faults:
                raise SettingsError(faults) from None
            keys = f"fleet.keys={toml.inline(config.keys)}"
            return load_with_sheet(path, [*overrides, keys], resolved=False)[0]


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class Cleared:
    """The clerk is done with a request: a ticket to queue, or a message to send."""

    caller: Caller
    request: int
    result: Ticket | w.Message


class Clerk(threading.Thread):
    """`give` it requests that take a while: SUBMIT, RUNS, the report of what is over; `post` hears what came of each.
    Tickets count on from `number`.
    """

    def __init__(self, config: HostConfig, number: int, post: Callable[[Cleared], None]) -> None:
        super().__init__(name="clerk", daemon=True)
        self._config, self._numbers, self._post = config, itertools.count(number), post
        self._requests: queue.SimpleQueue[tuple[Caller, w.Submit | w.Runs | w.Ended]] = queue.SimpleQueue()

    def give(self, caller: Caller, message: w.Submit | w.Runs | w.Ended) -> None:
        """Work on a request."""
        self._requests.put((caller, message))

    def run(self) -> None:
        """Work for as long as the process lives: a request that is cut off was not answered."""
        while True:
            caller, message = self._requests.get()
            try:
                result = self._result(message, caller.name)
            except PacelineError as error:
                errors = error.errors if isinstance(error, SettingsError) else [str(error)]
                result = w.Refused(message.request, error.exit_code, document={"errors": errors})
            except Exception as error:
                result = w.Refused(message.request, 1, document={"errors": [f"a bug of paceline: {error!r}"]})
            self._post(Cleared(caller, message.request, result))

    def _result(self, message: w.Submit | w.Runs | w.Ended, by: str) -> Ticket | w.Message:
        if isinstance(message, w.Submit):
            return take_in(message, by, next(self._numbers), self._config)
        if isinstance(message, w.Ended):
            report = report_of(Path(self._config.runs_dir) / message.ticket, lambda text: None)
            return replace(message, document=report)
        rows = list_runs(Path(self._config.runs_dir))
        return w.Told(message.request, document={"schema": "paceline-runs-1", "runs": rows[-MANY_RUNS:]})
