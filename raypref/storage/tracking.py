"""Runs in MLflow: the only importer of mlflow, and late, for it takes seconds.

The driver calls `prepare` once, before anything runs in parallel; then whoever executes a run (the driver, or a Tune
function) opens a `Run` from the URI and the experiment's id, which are plain strings.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from raypref.config import UserError
from raypref.tools import checkpoint
from raypref.tools.console import TERMINATED, warn
from raypref.tools.errors import Stopped
from raypref.tools.secrets import MASK, hidden

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Environment set before mlflow is imported, unless a person has; inherited by processes started later. A server that
does not answer thus fails in seconds instead of minutes."""
SQLITE = "sqlite:///"
LONGEST = 6000
"""Characters of a parameter that MLflow keeps; more would be a warning a parameter."""
SECONDS, PATIENCE = 2.0, 120.0
"""Metrics are kept back this long where more arrive (a write takes 20 ms on SQLite, 0.1 s over HTTP); after a failed
write, which itself can take 20 s where a server hangs, that long."""
RUNNING = "attributes.status = 'RUNNING'"
FOLDER = "raypref.folder"
"""Tag with the folder that a run is computed in."""
ERROR = "error"
"""Tag with the message of the exception that ended a run."""
DESCRIPTION = "mlflow.note.content"
"""Tag whose Markdown MLflow shows as the description of a run or an experiment."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment that has runs of training. MLflow 3.17 goes by the address instead (`address`), which is why
commands say it; other versions open an experiment of this kind on its runs."""
PORT = 5000
"""Where `mlflow ui` serves unless told otherwise."""
STOPPED = "raypref.stopped"
"""Tag with the round after which a sweep stopped a trial early."""


def tracking_uri(base: Path) -> str:
    """MLFLOW_TRACKING_URI where it is set, else `mlflow.db` in `base`, by absolute path: workers start elsewhere."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return SQLITE + str((base / "mlflow.db").resolve())
    return SQLITE + str(Path(uri.removeprefix(SQLITE)).resolve()) if uri.startswith(SQLITE) else uri


def revealed(uri: str) -> str:
    """A URI as it was written down, with the password that was left out of it: that of MLFLOW_TRACKING_URI. Raises
    `UserError` where that is another one."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if MASK in uri and hidden(given) != uri:
        raise UserError(f"{uri} had a password, which is kept nowhere; set MLFLOW_TRACKING_URI to it")
    return given if MASK in uri else uri


def address(uri: str, experiment_id: str, sweep: str = "", run: str = "") -> str:
    """Where a browser shows the runs of an experiment first thing: at the server, or where `mlflow ui` will serve a
    database. Without the type of workflow MLflow 3 opens an experiment on its page for traces, which is empty.

    sweep: the id of a sweep's run, of whose trials the charts are shown. run: the id of the one run to show.
    """
    at = uri.rstrip("/") if uri.startswith("http") else f"http://127.0.0.1:{PORT}"
    words = {"workflowType": "machine_learning"}
    if sweep:
        words |= {"compareRunsMode": "CHART", "searchFilter": f"tags.`mlflow.parentRunId` = '{sweep}'"}
    return f"{at}/#/experiments/{experiment_id}/runs{f'/{run}' if run else ''}?{urlencode(words, quote_via=quote)}"


def prepare(uri: str, experiment: str, about: str = "") -> str:
    """The experiment's id; creates the database and the experiment where they are missing.

    about: its description, in Markdown; one that a person has written stands.

    With SQLite artifacts go to `mlartifacts` beside the database, elsewhere where the server puts them. Raises
    `UserError` where nothing answers at `uri`, or the experiment was deleted.
    """
    folder = Path(uri.removeprefix(SQLITE)).parent if uri.startswith(SQLITE) else None
    if folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError("it is read-only")
        except OSError as error:
            raise UserError(
                f"the MLflow database cannot be in {folder} ({error.strerror or error}); set MLFLOW_TRACKING_URI"
            ) from error
    with _usable(uri), _lock(folder) if folder else contextlib.nullcontext():
        return _experiment(uri, experiment, str(folder / "mlartifacts") if folder else None, about)


@contextlib.contextmanager
def _usable(uri: str, what: str = "cannot be used") -> Iterator[None]:
    """Makes an error of MLflow, or of whatever it stands on (a database, HTTP), one line for people."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        mend = "free some space" if "disk is full" in str(error) else "mend or unset MLFLOW_TRACKING_URI"
        raise UserError(f"MLflow at {uri} {what} ({_first(error)}); {mend}") from error


def _check_database(uri: str, purpose: str = "") -> None:
    """`UserError` where the URI is a database file that is not there; mlflow itself would make it."""
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        raise UserError(
            f"there is no MLflow database {uri.removeprefix(SQLITE)}{purpose}; go to the folder where the runs were "
            "started, or set MLFLOW_TRACKING_URI"
        )


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time: MLflow locks the creation of its tables, but not the migrations that follow."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders; one driver needs none
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _experiment(uri: str, name: str, location: str | None, about: str) -> str:
    mlflow = _mlflow()
    client = mlflow.MlflowClient(uri)
    tags = KIND | ({DESCRIPTION: about} if about else {})
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=location, tags=tags))
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(name)  # another driver was quicker
            assert experiment is not None
    if experiment.lifecycle_stage != "active":
        raise UserError(f"the MLflow experiment {name!r} was deleted; restore it, or choose another name")
    for key, value in tags.items():  # of an earlier version
        if key not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, key, value)
    return str(experiment.experiment_id)


@dataclass(frozen=True)
class Model:
    """A model that a run leaves, as MLflow is told of it."""

    name: str
    loader: str
    """The module whose `_load_pyfunc` loads it."""
    write: Callable[[Path], None]
    """Writes what that loads into a folder."""
    example: Mapping[str, str]
    """A line of input: text by column."""
    outputs: Mapping[str, str]
    """MLflow's type of each column of output."""
    parameters: Mapping[str, str]
    """Of a request, with what holds where it says nothing."""
    options: Mapping[str, str]
    """Of loading, `model_config`, likewise."""


class Run:
    """A run in MLflow, open while the block runs; afterwards its status says how it ended.

    FINISHED; FAILED after an exception, whose message becomes the tag `error`; KILLED after Ctrl-C, SIGTERM or
    `Stopped`. Inside, SIGTERM raises SystemExit(143) (in a main thread only: Python allows handlers nowhere else), so
    that everything is closed in order. After a kill -9 the run stays RUNNING until it is resumed, or `close_stale` is
    called.

    MLflow holds nobody up: what it does not take at once waits, is tried again every two minutes and a last time when
    the block ends. `delivered` then says whether it has all; nothing is raised where it has not.
    """

    def __init__(
        self,
        uri: str,
        experiment_id: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """params: flat, dotted keys. parent_run_id: makes it a child. run_id: continue this run instead of a new one
        (where it is gone, a new one is made, with a warning: read `id`)."""
        self.uri, self.experiment_id, self.name = uri, experiment_id, name
        self.params = {key: _short(str(value)) for key, value in params.items()}
        self.tags = dict(tags or {}) | ({"mlflow.parentRunId": parent_run_id} if parent_run_id else {})
        self.id = run_id or ""
        """MLflow's run id; where none was given, known once the run is open there."""
        self.delivered = False
        """After the block: whether MLflow has taken everything."""
        self._opened, self._continues = False, bool(run_id)
        self._metrics: list[Any] = []
        self._files: list[Callable[[], None]] = []
        self._last: dict[str, int] = {}
        self._due = self._away = 0.0
        """When metrics are written next, and until when MLflow is left alone after it has failed."""
        self._handler: Any = None
        self._warned = False
        self._terminated = False

    def __enter__(self) -> Run:
        self._client: MlflowClient = _mlflow().MlflowClient(self.uri)
        previous = signal.getsignal(signal.SIGTERM)
        if previous is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminate)
            self._handler = previous
        try:
            self._deliver()
        except BaseException as error:
            self._close(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminated:  # Ray makes another exit status of it where it interrupts a wait of Ray's
            error = SystemExit(TERMINATED)
        self._close(error)
        if self._terminated:
            raise error

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one step, in batches, the last ones when the block ends, however it ends.

        Each metric's steps rise. A step that it has reached before is left as it is, so that a run may be logged again.
        """
        now = int(time.time() * 1000)
        self._metrics += [_mlflow().entities.Metric(key, float(value), now, step) for key, value in values.items()]
        if time.monotonic() >= max(self._due, self._away):
            self._deliver()

    def describe(self, text: str) -> None:
        """Give the run a description, in Markdown; `{file}` in it becomes the address of that artifact of the run."""
        self._file(lambda: self._client.set_tag(self.id, DESCRIPTION, _short(self._linked(text))))

    def _linked(self, text: str) -> str:
        return re.sub(r"\{([\w.-]+)\}", rf"get-artifact?path=\1&run_uuid={self.id}", text)

    def artifact(self, path: Path) -> None:
        """Upload a file to the top of the run's artifacts."""
        self._file(lambda: self._client.log_artifact(self.id, str(path)))

    def artifacts(self, path: Path, folder: str) -> None:
        """Upload the files of a directory into `folder` of the run's artifacts."""
        self._file(lambda: self._client.log_artifacts(self.id, str(path), folder))

    def model(self, model: Model) -> None:
        """Log a model of the run, once, however often called: `mlflow.pyfunc.load_model("runs:/ID/NAME")` loads it."""
        self._file(lambda: self._log_model(model))

    def _log_model(self, model: Model) -> None:
        mlflow = _mlflow()
        of_run = f"source_run_id = '{self.id}' AND name = '{model.name}'"
        begun = self._client.search_logged_models([self.experiment_id], of_run)  # before MLflow was away
        there = begun[0] if begun else self._client.create_logged_model(self.experiment_id, model.name, self.id)
        types, id = mlflow.types, there.model_id
        described = mlflow.models.Model(there.artifact_location, self.id, model_uuid=id, model_id=id)
        described.signature = mlflow.models.ModelSignature(
            types.Schema([types.ColSpec("string", name) for name in model.example]),
            types.Schema([types.ColSpec(kind, name) for name, kind in model.outputs.items()]),
            types.ParamSchema([types.ParamSpec(name, "string", usual) for name, usual in model.parameters.items()]),
        )
        example = {"columns": list(model.example), "data": [list(model.example.values())]}
        described.saved_input_example_info = {
            "artifact_path": "input_example.json",
            "serving_input_path": "serving_input_example.json",
            "type": "dataframe",
            "pandas_orient": "split",
        }
        # `mlflow.pyfunc.save_model` would look through every installed package, for seconds.
        mlflow.pyfunc.add_to_model(described, model.loader, data="data", model_config=dict(model.options))
        with tempfile.TemporaryDirectory() as folder:
            model.write(Path(folder) / "data")
            checkpoint.write_json(Path(folder) / "input_example.json", example)
            checkpoint.write_json(Path(folder) / "serving_input_example.json", {"dataframe_split": example})
            described.save(str(Path(folder) / "MLmodel"))
            self._client.log_model_artifacts(id, folder)
        self._client.finalize_logged_model(id, "READY")
        outputs = self._client.get_run(self.id).outputs
        if outputs is None or id not in {output.model_id for output in outputs.model_outputs}:
            self._client.log_outputs(self.id, [mlflow.entities.LoggedModelOutput(id, 0)])

    def _file(self, upload: Callable[[], None]) -> None:
        self._files.append(upload)
        if time.monotonic() >= self._away:
            self._deliver()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        raise SystemExit(TERMINATED)

    def _deliver(self) -> bool:
        """Give MLflow what waits; False where it does not take it. MLflow, its database and HTTP raise errors of many
        kinds, and none of them may end a run of days."""
        try:
            if not self._opened:
                self._open()
                self._opened = True
            while self._metrics:
                batch, new, last = self._metrics[:1000], [], {}  # MLflow's most at once
                for metric in batch:
                    if metric.step > last.get(metric.key, self._reached(metric.key)):
                        new.append(metric)
                        last[metric.key] = metric.step
                self._client.log_batch(self.id, metrics=new)
                self._last |= last
                del self._metrics[:1000]
            while self._files:
                self._files[0]()
                del self._files[0]
        except Exception as error:
            self._away = time.monotonic() + PATIENCE
            if not self._warned:
                warn(f"MLflow at {self.uri} does not answer, what it should get is kept for later: {_first(error)}")
            self._warned = True
            return False
        self._due = time.monotonic() + SECONDS
        return True

    def _reached(self, key: str) -> int:
        """The last step at which MLflow holds this metric; -1 for none."""
        if key not in self._last:
            history = self._client.get_metric_history(self.id, key) if self._continues else []
            self._last[key] = max((metric.step for metric in history), default=-1)
        return self._last[key]

    def _open(self) -> None:
        mlflow = _mlflow()
        params = self._resumed_params(mlflow) if self.id else None
        if params is None:
            from mlflow.tracking.context.registry import resolve_tags  # user, source, commit: as MLflow's own runs

            self._close_stale()
            run = self._client.create_run(self.experiment_id, tags=resolve_tags(self.tags), run_name=self.name)
            self.id, params = run.info.run_id, {}
        else:
            self._client.update_run(self.id, status="RUNNING")
            # MLflow refuses to change a parameter. Where a run goes on with another value, a tag tells.
            changed = {f"resumed.{k}": v for k, v in self.params.items() if params.get(k, v) != v}
            tags = [mlflow.entities.RunTag(key, value) for key, value in (self.tags | changed).items()]
            self._client.log_batch(self.id, tags=tags)
        new = [mlflow.entities.Param(key, value) for key, value in self.params.items() if key not in params]
        for start in range(0, len(new), 100):  # MLflow's most at once
            self._client.log_batch(self.id, params=new[start : start + 100])

    def _close_stale(self) -> None:
        """Mark as KILLED what a process left RUNNING that was killed before the folder knew its run's id."""
        if folder := self.tags.get(FOLDER):
            for run in self._client.search_runs([self.experiment_id], RUNNING, max_results=50_000):
                if run.data.tags.get(FOLDER) == folder:
                    self._client.set_terminated(run.info.run_id, "KILLED")

    def _resumed_params(self, mlflow: Any) -> dict[str, str] | None:
        """Parameters of the run to resume; None (and a warning) where it is gone."""
        try:
            run = self._client.get_run(self.id)
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            run = None
        if run is None or run.info.lifecycle_stage != "active":
            warn(f"MLflow run {self.id} is gone; a new one continues it")
            self.id, self._continues = "", False
            return None
        if ERROR in run.data.tags:
            self._client.delete_tag(self.id, ERROR)
        return dict(run.data.params)

    def _close(self, error: BaseException | None) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not leave the run RUNNING
        try:
            status = _status(error)
            if self._deliver():
                self._end(status, error)
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)

    def _end(self, status: str, error: BaseException | None) -> None:
        try:
            if status == "FAILED":
                self._client.set_tag(self.id, ERROR, _short(hidden(f"{type(error).__name__}: {error}")))
            self._client.set_terminated(self.id, status)
            self.delivered = True
        except Exception as refused:
            warn(f"MLflow at {self.uri} was not told that run {self.id} is {status}: {_first(refused)}")


def close_stale(uri: str, experiment_id: str, run_ids: Collection[str]) -> None:
    """Mark as KILLED those of `run_ids` that a kill -9 left RUNNING in the experiment.

    Only for runs whose processes are known to be gone. A warning where MLflow does not answer.
    """
    client = _mlflow().MlflowClient(uri)
    try:
        for run in client.search_runs([experiment_id], RUNNING, max_results=50_000):
            if run.info.run_id in run_ids:
                client.set_terminated(run.info.run_id, "KILLED")
    except Exception as error:
        warn(f"MLflow at {uri} does not answer; interrupted runs may stay RUNNING there: {_first(error)}")


def mark_stopped(uri: str, run_id: str, round: int) -> bool:
    """Mark a run as stopped early by its sweep: status KILLED, and a tag with the round. A warning, and False, where
    MLflow does not answer."""
    client = _mlflow().MlflowClient(uri)
    try:
        client.set_tag(run_id, STOPPED, str(round))
        client.set_terminated(run_id, "KILLED")
    except Exception as error:
        warn(f"MLflow at {uri} was not told that run {run_id} was stopped early: {_first(error)}")
        return False
    return True


@dataclass(frozen=True)
class TrackedRun:
    """A run as MLflow has stored it."""

    id: str
    experiment: str
    status: str
    """FINISHED, FAILED, KILLED, RUNNING or SCHEDULED."""
    started: int
    """Milliseconds since 1970."""
    params: Mapping[str, str]
    tags: Mapping[str, str]


def search(uri: str, experiments: Sequence[str]) -> tuple[list[TrackedRun], list[str]]:
    """The runs of these experiments, oldest first within each, and the names of all experiments there are.

    An experiment that is not there has none. Raises `UserError` where nothing answers at `uri`; creates nothing.
    """
    _check_database(uri)
    with _usable(uri):
        client = _mlflow().MlflowClient(uri)
        ids = {e.name: e.experiment_id for e in client.search_experiments()}
        runs = [run for name in experiments if name in ids for run in _runs(client, name, ids[name])]
    return runs, sorted(ids)


def _runs(client: MlflowClient, name: str, experiment_id: str) -> Iterator[TrackedRun]:
    token = None
    while True:
        page = client.search_runs([experiment_id], order_by=["attributes.start_time ASC"], page_token=token)
        for run in page:
            info, data = run.info, run.data
            yield TrackedRun(info.run_id, name, info.status, info.start_time, data.params, data.tags)
        token = page.token
        if not token:
            return


def read_artifacts(uri: str, run_id: str, names: Collection[str]) -> dict[str, bytes]:
    """Download those of the named files that the top folder of a run's artifacts has; returns their bytes by name."""
    if moved := _moved_artifacts(uri, run_id):
        return {name: (moved / name).read_bytes() for name in names if (moved / name).is_file()}
    client = _mlflow().MlflowClient(uri)
    stored = {item.path for item in client.list_artifacts(run_id)}
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: Path(client.download_artifacts(run_id, name, folder)).read_bytes() for name in names if name in stored
        }


def _moved_artifacts(uri: str, run_id: str) -> Path | None:
    """The folder of a run's artifacts where it lies beside its database (see `prepare`): MLflow keeps absolute paths,
    which a folder that has moved with its database leaves behind."""
    if not uri.startswith(SQLITE):
        return None
    folder = Path(uri.removeprefix(SQLITE)).parent / "mlartifacts" / run_id / "artifacts"
    return folder if folder.is_dir() else None


def fetch(uri: str, run_id: str, to: Path) -> Path:
    """The folder of a run: the one it was computed in, where this machine has that, else `to`.

    Its artifacts are downloaded into `to` unless they are there. Raises `UserError` where there is no such run.
    """
    _check_database(uri, f" to look run {run_id} up in")
    with _usable(uri, f"has no such run {run_id}"):
        client = _mlflow().MlflowClient(uri)
        run = client.get_run(run_id)
        original = Path(run.data.tags.get(FOLDER, ""))
        if (original / "config.json").is_file():
            return original
        if run.info.status != "FINISHED":
            raise UserError(f"run {run_id} is {run.info.status}, not finished")
        if not (to / "config.json").is_file():
            aside = to.with_name(f".{to.name}.{os.getpid()}")
            if moved := _moved_artifacts(uri, run_id):
                shutil.copytree(moved, aside)
            else:
                aside.mkdir(parents=True, exist_ok=True)
                client.download_artifacts(run_id, "", str(aside))
            os.replace(aside, to)
    return to


def _mlflow() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # logs tracebacks of what it then raises
    import mlflow
    import mlflow.entities
    import mlflow.exceptions
    import mlflow.pyfunc

    return mlflow


def _status(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "FINISHED"
    if isinstance(error, (KeyboardInterrupt, Stopped)) or (isinstance(error, SystemExit) and error.code == TERMINATED):
        return "KILLED"
    return "FAILED"


def _short(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _first(error: BaseException) -> str:
    """The first line of its message, cut where it rambles (chains of causes over HTTP)."""
    return _short(str(error).partition("\n")[0], 250)
