"""What is installed, declared, shipped and deployed must agree."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import raypref
from raypref.config.spaces import every_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("raypref", "tune_spaces")
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PINS = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in CONSTRAINTS.splitlines() if not line.startswith("#"))
}
REQUIREMENTS = [
    Requirement(text)
    for texts in (PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values())
    for text in texts
]
HEAVY = {"datasets", "matplotlib", "mlflow", "openai", "peft", "ray", "torch", "transformers"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "cluster" / name).read_text()))


def find(kind: str, name: str = "kuberay-base.yaml") -> dict[str, Any]:
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


def cluster_spec() -> dict[str, Any]:
    return find("RayJob", "kuberay-rayjob.yaml")["spec"]["rayClusterSpec"]


def pods() -> list[dict[str, Any]]:
    """Pod specs of the RayJob: head, then workers."""
    groups = (cluster_spec()["headGroupSpec"], *cluster_spec()["workerGroupSpecs"])
    return [group["template"]["spec"] for group in groups]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}


# --- dependencies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_ranges_admit_the_pins(requirement: Requirement) -> None:
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_pins_are_what_the_tests_run_with() -> None:
    place = [sysconfig.get_path("purelib")]  # setuptools, once imported, adds what it carries inside itself
    found = importlib.metadata.distributions(path=place)
    installed = {canonicalize_name(d.name): Version(d.version).public for d in found}
    assert len(set(PINS) & set(installed)) > 50
    assert {n: (v, installed[n]) for n, v in PINS.items() if n in installed and installed[n] != v} == {}


def test_pins_name_neither_hosts_nor_builds() -> None:
    """`torch==2.13.0+cpu` exists in one index only; a URL ties everybody to one place."""
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.]+", f"{n}=={v}") for n, v in PINS.items())


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, at its top or late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_every_import_is_a_declared_dependency() -> None:
    """What only comes along with something else may be gone with its next version."""
    names = {name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in imported(path)}
    distributions = importlib.metadata.packages_distributions()
    declared = {canonicalize_name(requirement.name) for requirement in REQUIREMENTS}
    foreign = names - set(sys.stdlib_module_names) - set(PACKAGES)
    assert {n for n in foreign if not declared & {canonicalize_name(d) for d in distributions.get(n, [n])}} == set()


# --- what is shipped ------------------------------------------------------------------------------------------------


def test_package_data_is_all_there_and_all_shipped() -> None:
    shipped: set[Path] = set()
    for package, globs in PROJECT["tool"]["setuptools"]["package-data"].items():
        for pattern in globs:
            matching = set((ROOT / package.replace(".", "/")).glob(pattern))
            assert matching, f"{package}: {pattern} matches nothing"
            shipped |= matching
    data = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert {p for p in data - shipped if p.suffix != ".py" and "__pycache__" not in p.parts} == set()


def test_ci_runs_as_checked_out() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR


def test_an_old_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("no make")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python3.10"
    old = "import sys; sys.version_info = (3, 10, 13); sys.version = '3.10.13 (main)'; exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{old}" "$2"\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "demo", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"raypref needs Python 3.11 or newer; {python} is 3.10.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


# --- command lines --------------------------------------------------------------------------------------------------


def call(module: str, *arguments: str) -> tuple[str, set[str]]:
    """What `python -m module …` prints, and which heavy libraries it has loaded by the time it exits with status 0."""
    code = (
        "import atexit, runpy, sys\n"
        f"atexit.register(lambda: print('loaded', *({HEAVY!r} & set(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = {[module, *arguments]!r}\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "words",
    [
        f"{module}{flag}"
        for module in ("raypref.run", "raypref.sweep", "raypref.compare", "raypref.data", "raypref.judge")
        for flag in ("", " --help")
    ]
    + ["raypref.run fedvpa_gp --help", "raypref.sweep fedavg --help", "raypref.rlhf fedvpa_gp --help"]
    + ["raypref.score --help", "raypref.generate --help"],
)
def test_a_question_about_usage_loads_no_heavy_library(words: str) -> None:
    printed, loaded = call(*words.split())
    assert printed.strip()
    assert loaded == set()


def commands(*paths: Path) -> dict[str, list[str]]:
    """A line -> its module and arguments, for every raypref command that these files would have run, or show."""
    found = {}
    for path in paths:
        for line in re.findall(r"python -m (raypref\.[^`\n#]*)", path.read_text().replace("\\\n", " ")):
            found[f"{path.name}: {line.strip()}"] = shlex.split(line)
    return found


@functools.cache
def flags(module: str, *words: str) -> set[str]:
    """What `--help` of a command knows."""
    return set(re.findall(r"--[a-z][\w.-]*", call(module, *words, "--help")[0]))


def check_command(module: str, *arguments: str) -> None:
    """That a command exists, with the spaces that it names (NAME: any) or its part of `raypref.data`, and its flags."""
    assert importlib.util.find_spec(module) is not None
    words = list(itertools.takewhile(lambda word: not word.startswith("--"), arguments))
    if module in ("raypref.run", "raypref.sweep", "raypref.rlhf", "raypref.compare"):
        words = [word for word in words if word != "…"]
        words = ["fedgd" if word == "NAME" else word for word in words]
        assert set(words) <= set(every_name()), words
    no_space = ("compare", "claims", "judge", "generate", "score", "onboard")
    asked = [] if module.removeprefix("raypref.") in no_space else words[:1]
    assert {argument for argument in arguments if argument.startswith("--")} <= flags(module, *asked)


CLUSTER = commands(*sorted((ROOT / "cluster").iterdir()))


@pytest.mark.parametrize("command", CLUSTER.values(), ids=CLUSTER)
def test_cluster_files_use_commands_that_exist(command: list[str]) -> None:
    check_command(*command)


# --- the cluster files ----------------------------------------------------------------------------------------------


def test_every_node_runs_the_pinned_ray_and_the_tested_python() -> None:
    tested = re.search(r"on Python (\d+)\.(\d+)", CONSTRAINTS)
    assert tested is not None
    major, minor = tested.groups()
    assert (
        f"FROM rayproject/ray:{PINS['ray']}-py{major}{minor}${{PLATFORM}}\n"
        in (ROOT / "cluster/Dockerfile").read_text()
    )
    assert cluster_spec()["rayVersion"] == PINS["ray"]
    assert f"{major}.{minor}" in Requirement(f"python{PROJECT['project']['requires-python']}").specifier


def test_every_file_names_the_one_image() -> None:
    images = {
        image for path in (ROOT / "cluster").iterdir() for image in re.findall(r"\braypref:[\w.]+", path.read_text())
    }
    assert images == {f"raypref:{raypref.__version__}"}


def test_the_image_gets_every_file_that_it_copies() -> None:
    """The ignore file admits by name; what is not named does not exist for COPY."""
    copied = set()
    for line in re.findall(r"^COPY --chown=\S+ (.+)$", (ROOT / "cluster/Dockerfile").read_text(), re.MULTILINE):
        copied |= set(line.split()[:-1])
    admitted = re.findall(r"^!(.+)$", (ROOT / "cluster/Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert copied == set(admitted)
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_installs_what_is_pinned() -> None:
    runs = re.findall(r"^RUN (.+)$", (ROOT / "cluster/Dockerfile").read_text(), re.MULTILINE)
    assert runs and all("constraints.txt" in run for run in runs)
    for pattern in re.findall(r"grep '([^']+)' constraints\.txt", " ".join(runs)):
        assert len(re.findall(pattern, CONSTRAINTS, re.MULTILINE)) == 1


def check_launcher(document: dict[str, Any]) -> None:
    """Against the schema of `ray up`."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None and ray.submodule_search_locations
    schema = json.loads(Path(ray.submodule_search_locations[0], "autoscaler", "ray-schema.json").read_text())
    jsonschema.validate(document, schema)


def test_the_launcher_file_passes_rays_schema() -> None:
    check_launcher(documents("ray-cluster.yaml")[0])


def an(fields: dict[str, Any], *needed: str) -> dict[str, Any]:
    """The schema of an object of these fields and no others, some of which it needs."""
    return {"type": "object", "properties": fields, "required": list(needed), "additionalProperties": False}


def many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(m|[KMGT]i)?$"}
META = an({"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}, "labels": TEXTS})
RESOURCES = an({key: {"type": "object", "additionalProperties": QUANTITY} for key in ("requests", "limits")})
CONTAINER = an(
    {
        "name": TEXT,
        "image": TEXT,
        "command": many(TEXT),
        "env": many(an({"name": TEXT, "value": TEXT}, "name", "value")),
        "envFrom": many(an({"secretRef": an({"name": TEXT}, "name")}, "secretRef")),
        "ports": many(an({"containerPort": COUNT}, "containerPort")),
        "readinessProbe": an({"httpGet": an({"path": TEXT, "port": COUNT}, "path", "port")}, "httpGet"),
        "resources": RESOURCES,
        "volumeMounts": many(an({"name": TEXT, "mountPath": TEXT}, "name", "mountPath")),
    },
    *("name", "image", "resources"),
)
VOLUME = an({"name": TEXT, "persistentVolumeClaim": an({"claimName": TEXT}, "claimName")}, "name")
POD = an(
    {
        "enableServiceLinks": FLAG,
        "securityContext": an({"fsGroup": COUNT}),
        "containers": many(CONTAINER),
        "volumes": many(VOLUME),
    },
    "containers",
)
TEMPLATE = an({"metadata": META, "spec": POD}, "spec")
GROUP = {"rayStartParams": TEXTS, "template": TEMPLATE}
WORKERS = {"groupName": TEXT, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT, "numOfHosts": COUNT}
CLUSTER_SPEC = an(
    {
        "rayVersion": TEXT,
        "authOptions": an({"mode": {"enum": ["disabled", "token"]}, "secretName": TEXT}),
        "enableInTreeAutoscaling": FLAG,
        "autoscalerOptions": an({"version": {"enum": ["v1", "v2"]}, "idleTimeoutSeconds": COUNT}),
        "headGroupSpec": an(GROUP, *GROUP),
        "workerGroupSpecs": many(an(WORKERS | GROUP, "groupName", "minReplicas", "maxReplicas", *GROUP)),
    },
    "headGroupSpec",
)
JOB = an(
    {
        "entrypoint": TEXT,
        "backoffLimit": COUNT,
        "activeDeadlineSeconds": COUNT,
        "shutdownAfterJobFinishes": FLAG,
        "ttlSecondsAfterFinished": COUNT,
        "suspend": FLAG,
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        "runtimeEnvYAML": TEXT,
        "rayClusterSpec": CLUSTER_SPEC,
    },
    *("entrypoint", "rayClusterSpec"),
)
CLAIM = an({"accessModes": many(TEXT), "resources": RESOURCES, "storageClassName": TEXT}, "accessModes", "resources")
SERVICE = an({"selector": TEXTS, "ports": many(an({"port": COUNT, "targetPort": COUNT}, "port"))}, "selector", "ports")
DEPLOYMENT = an(
    {
        "replicas": COUNT,
        "strategy": an({"type": {"enum": ["Recreate", "RollingUpdate"]}}),
        "selector": an({"matchLabels": TEXTS}, "matchLabels"),
        "template": TEMPLATE,
    },
    *("selector", "template"),
)
KINDS = {
    "RayJob": ("ray.io/v1", JOB),
    "PersistentVolumeClaim": ("v1", CLAIM),
    "Service": ("v1", SERVICE),
    "Deployment": ("apps/v1", DEPLOYMENT),
}
"""Of KubeRay (1.5) and Kubernetes, by kind: its version, and those fields of its `spec` that a file here may use,
with their types. An operator drops other names without a word, or refuses them."""


@pytest.mark.parametrize("name", ["kuberay-base.yaml", "kuberay-rayjob.yaml"])
def test_kubernetes_files_have_known_fields_alone(name: str) -> None:
    for document in documents(name):
        version, spec = KINDS[document["kind"]]
        outside = {"apiVersion": {"const": version}, "kind": TEXT, "metadata": META, "spec": spec}
        jsonschema.validate(document, an(outside, *outside))


def test_a_misspelt_field_of_a_kubernetes_file_is_found() -> None:
    job = find("RayJob", "kuberay-rayjob.yaml")["spec"]
    group = job["rayClusterSpec"]["workerGroupSpecs"][0]
    group["maxReplica"] = group.pop("maxReplicas")
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(job, JOB)


def test_groups_ask_for_what_they_may_have() -> None:
    for group in cluster_spec()["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]  # Ray counts the limits


def test_the_cloud_that_the_launcher_file_describes_passes_rays_schema() -> None:
    """Its commented lines, in the place of `provider`."""
    text = (ROOT / "cluster" / "ray-cluster.yaml").read_text()
    cloud = yaml.safe_load("\n".join(re.findall(r"^#   (\S.*|    .*)$", text, re.MULTILINE)))
    assert {"provider", "available_node_types", "head_node_type"} <= set(cloud)
    check_launcher(documents("ray-cluster.yaml")[0] | cloud)
    assert cloud["head_node_type"] in cloud["available_node_types"]


def test_the_sweep_writes_where_every_node_looks() -> None:
    arguments = shlex.split(find("RayJob", "kuberay-rayjob.yaml")["spec"]["entrypoint"])
    out = Path(arguments[arguments.index("--out") + 1])
    claims = {d["metadata"]["name"]: d["spec"] for d in documents("kuberay-base.yaml") if d["kind"].endswith("Claim")}
    for pod in pods():
        (mount,) = pod["containers"][0]["volumeMounts"]
        (volume,) = pod["volumes"]
        assert out.is_relative_to(mount["mountPath"])
        assert volume["name"] == mount["name"]
        assert claims[volume["persistentVolumeClaim"]["claimName"]]["accessModes"] == ["ReadWriteMany"]


def test_every_node_finds_the_mlflow_server_and_is_let_in() -> None:
    service, server = find("Service"), find("Deployment")["spec"]["template"]
    address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert {environment(pod)["MLFLOW_TRACKING_URI"] for pod in pods()} == {f"http://{address}"}
    assert service["spec"]["selector"] == server["metadata"]["labels"]
    flags = dict(part.split("=", 1) for part in server["spec"]["containers"][0]["command"] if "=" in part)
    assert address in flags["--allowed-hosts"].split(",")
    assert flags["--port"] == str(service["spec"]["ports"][0]["port"])
    mounts = [mount["mountPath"] for mount in server["spec"]["containers"][0]["volumeMounts"]]
    assert [
        flags["--artifacts-destination"].startswith(m) and f"sqlite:///{m}/" in flags["--backend-store-uri"]
        for m in mounts
    ] == [True]


def test_start_parameters_are_strings() -> None:
    """KubeRay's definition admits nothing else; YAML's bare 0 is a number."""
    groups = (cluster_spec()["headGroupSpec"], *cluster_spec()["workerGroupSpecs"])
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())
