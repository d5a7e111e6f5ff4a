"""The manifests for Kubernetes: valid in the schemas, closed, and true to the server."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ran
from files import ROOT, text_of

from hrm_edge_server.middleware import OPEN_PATHS

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "docker" / "kubernetes"
FILES = sorted(file for file in FOLDER.rglob("*.yaml") if file.name != "kustomization.yaml")
OVERLAYS = {
    "serve": ["Service", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"],
    "jetson": ["Service", "DaemonSet"],
    "cuda": ["Service", "Deployment", "PodDisruptionBudget"],
    "proxy": ["Service", "Service", "Deployment", "PodDisruptionBudget"],
}
VERSIONS = ("1.30", "1.37")

Manifest = dict[str, Any]


def manifests_in(text: str) -> list[Manifest]:
    return list(yaml.safe_load_all(text))


def overlaid(name: str) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl") or shutil.which("kustomize")
    if kubectl is None:
        pytest.skip("no kubectl or kustomize on this machine: install one of them")
    command = [kubectl, "kustomize", str(FOLDER / name)]
    if Path(kubectl).name == "kustomize":
        command = [kubectl, "build", str(FOLDER / name)]
    return manifests_in(ran(*command).stdout)


def only(kind: str, manifests: list[Manifest]) -> Manifest:
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_manifest_is_valid(file: Path, version: str):
    for manifest in manifests_in(file.read_text()):
        if manifest["kind"] == "PyTorchJob":
            manifest = as_job(manifest)
        kubernetes_validate.validate(manifest, version, strict=True)


def as_job(training: Manifest) -> Manifest:
    """The pods of a PyTorchJob as a Job, since the schemas of Kubernetes lack Kubeflow's kinds."""
    assert training["apiVersion"] == "kubeflow.org/v1"
    spec = training["spec"]
    (workers,) = spec["pytorchReplicaSpecs"].values()
    policy = spec["elasticPolicy"]
    assert workers["replicas"] == policy["minReplicas"] == policy["maxReplicas"]
    template = workers["template"]
    assert [container["name"] for container in template["spec"]["containers"]] == ["pytorch"]
    template["spec"]["restartPolicy"] = workers["restartPolicy"]
    metadata = training["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": template},
    }


@pytest.mark.process
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OVERLAYS)
def test_what_kustomize_makes_is_valid(name: str, version: str):
    made = overlaid(name)
    assert [manifest["kind"] for manifest in made] == OVERLAYS[name]
    for manifest in made:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.process
def test_a_labeled_jetson_gets_one_pod_whose_engines_stay_on_the_board():
    daemon = only("DaemonSet", overlaid("jetson"))["spec"]
    assert "strategy" not in daemon  # of a Deployment
    pod = daemon["template"]["spec"]
    assert pod["nodeSelector"] == {"hrm-edge/board": "jetson"}
    (container,) = pod["containers"]
    assert container["image"] == "hrm-edge:jetson"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: paths[mount["name"]] for mount in container["volumeMounts"]}
    composed = yaml.safe_load(text_of("docker/compose.jetson.yaml"))
    for volume in composed["services"]["hrm"]["volumes"]:
        source, target, *_ = volume.split(":")
        if source == "hrm-engines":
            source = "/var/cache/hrm"
        assert mounts.pop(target) == source
    assert mounts == {"/etc/hrm": None, "/tmp": None}
    (owner,) = pod["initContainers"]
    assert owner["command"] == ["chown", "10001", "/var/cache/hrm"]
    assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}


@pytest.mark.process
def test_a_pod_takes_one_card_and_a_rollout_frees_it_first():
    deployment = only("Deployment", overlaid("cuda"))["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["image"] == "hrm-edge:cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_the_proxies_find_the_ready_pods_by_the_name_of_their_port():
    made = manifests_in((FOLDER / "proxy" / "proxy.yaml").read_text())
    proxy = only("Deployment", made)["spec"]
    assert proxy["replicas"] > 1
    (container,) = proxy["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    configuration = text_of("docker/haproxy.cfg")
    assert set(re.findall(r"\$\{(\w+)\}", configuration)) == variables.keys()
    (boards,) = (one for one in made if one["spec"].get("clusterIP") == "None")
    name = f"{boards['metadata']['name']}.default.svc.cluster.local"
    (port,) = boards["spec"]["ports"]
    assert variables["HRM_FLEET_BOARDS"] == f"_{port['name']}._tcp.{name}"
    (server,) = manifests_in((FOLDER / "serve" / "service.yaml").read_text())
    assert boards["spec"]["selector"] == server["spec"]["selector"]


def pod_specs() -> dict[str, Manifest]:
    specs = {}
    for file in FILES:
        for manifest in manifests_in(file.read_text()):
            if "template" in manifest.get("spec", {}):
                specs[file.stem] = manifest["spec"]["template"]["spec"]
    return specs


@pytest.mark.parametrize("name", pod_specs())
def test_a_pod_is_as_closed_as_the_composed_container(name: str):
    spec = pod_specs()[name]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_probes_and_the_drain_are_those_of_the_server():
    spec = pod_specs()["deployment"]
    (container,) = spec["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN_PATHS  # probes send no key
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    options = text_of("docs/api.md")
    drain = re.search(r"`--drain-seconds` \| `([\d.]+)`", options)
    assert spec["terminationGracePeriodSeconds"] >= pause_s + float(drain[1]) + 5
