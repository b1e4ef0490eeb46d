"""docker/ against the program: what its files name exists, and the times in them fit together. No cluster and no engine are asked."""

import glob
import os
import re
import subprocess

import pytest
import yaml
from conftest import INFERD
from prometheus import program

TOP = os.path.join(os.path.dirname(__file__), "..", "..")
DOCKER = os.path.join(TOP, "docker")


def documents(*path):
    with open(os.path.join(DOCKER, *path)) as f:
        return list(yaml.safe_load_all(f))


def of_kind(kind, *path):
    (found,) = [d for d in documents(*path) if d["kind"] == kind]
    return found


def inside(document, key):
    """Every value of a key, however deep."""
    if isinstance(document, dict):
        for k, v in document.items():
            if k == key:
                yield v
            yield from inside(v, key)
    elif isinstance(document, list):
        for v in document:
            yield from inside(v, key)


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m|h)?", str(text)).groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600, None: 1}[unit]


ALL = sorted(os.path.relpath(f, DOCKER) for f in glob.glob(os.path.join(DOCKER, "**", "*.y*ml"), recursive=True))


@pytest.mark.parametrize("path", ALL)
def test_yaml_parses(path):
    assert all(documents(path)) and documents(path)


@pytest.mark.parametrize("path", [p for p in ALL if p.startswith("k8s")])
def test_manifests_say_that_no_cluster_has_seen_them(path):
    with open(os.path.join(DOCKER, path)) as f:
        text = f.read()
    assert "ntested on a cluster" in text or path == os.path.join("k8s", "cuda", "patch.yaml")
    for d in documents(path):
        assert d["apiVersion"] and d["kind"]


def environments():
    """Every variable that a container of inferd gets: (where, name, value)."""
    for path in ALL:
        for d in documents(path):
            for env in inside(d, "env"):
                for e in env:
                    yield path, e["name"], e.get("value")
            for service, s in d.get("services", {}).items():
                if service == "inferd":
                    for name, value in s.get("environment", {}).items():
                        yield path, name, str(value)
    for name in ("Dockerfile", "Dockerfile.cpu"):
        with open(os.path.join(DOCKER, name)) as f:
            for line in f:
                if line.startswith("ENV "):
                    for pair in line.split()[1:]:
                        yield name, *pair.split("=", 1)


def test_variables_are_settings(tmp_path):
    ours = [(path, name, value) for path, name, value in environments() if name.startswith("INFERD_")]
    assert len({name for _, name, _ in ours}) >= 6
    model = tmp_path / "model.gguf"
    model.touch()
    for path, name, value in ours:
        given = "x" if value is None or "$" in value else value
        flag = "--" + name[len("INFERD_"):].lower().replace("_", "-")
        # an unknown variable is passed over, an unknown flag is not
        r = subprocess.run([INFERD, "serve", str(model), flag + "=" + given, "--print-config"], capture_output=True, text=True)
        assert r.returncode == 0, f"{path}: {name}: {r.stderr}"


def test_arguments_are_understood(tmp_path):
    deployment = of_kind("Deployment", "k8s", "deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    service = documents("compose.yaml")[0]["services"]["inferd"]
    for args in (container["args"], service["command"]):
        r = subprocess.run([INFERD, *args, "--print-config"], capture_output=True, text=True)
        assert r.returncode == 0 and f"model = {args[1]}\n" in r.stdout, r.stderr


def test_termination_is_longer_than_the_drain():
    spec = of_kind("Deployment", "k8s", "deployment.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (drain,) = [e["value"] for e in container["env"] if e["name"] == "INFERD_DRAIN_TIMEOUT"]
    assert spec["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + seconds(drain) + 5
    service = documents("compose.yaml")[0]["services"]["inferd"]
    assert seconds(service["stop_grace_period"]) > seconds(service["environment"]["INFERD_DRAIN_TIMEOUT"]) + 5


def test_probes(daemon):
    (container,) = of_kind("Deployment", "k8s", "deployment.yaml")["spec"]["template"]["spec"]["containers"]
    startup, live, ready = (container[p + "Probe"] for p in ("startup", "liveness", "readiness"))
    assert live["httpGet"]["path"] == "/livez" and ready["httpGet"]["path"] == startup["httpGet"]["path"] == "/readyz"
    for probe in (startup, live, ready):
        assert daemon.get(probe["httpGet"]["path"]).status == 200
        assert {"name": probe["httpGet"]["port"], "containerPort": 8080} in container["ports"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 15 * 60
    assert live["failureThreshold"] * live["periodSeconds"] >= 30
    deployment = of_kind("Deployment", "k8s", "deployment.yaml")
    assert deployment["spec"]["progressDeadlineSeconds"] > startup["failureThreshold"] * startup["periodSeconds"]


def test_nodes_fit_together():
    """The set's leader is a deployment's pod; all nodes have the same settings, as many as there are nodes; the pods alone meet."""
    path = ("k8s", "leaderworkerset.yaml")
    lws = of_kind("LeaderWorkerSet", *path)["spec"]["leaderWorkerTemplate"]
    leader, worker = (lws[t]["spec"] for t in ("leaderTemplate", "workerTemplate"))
    (first,), (other,) = leader["containers"], worker["containers"]
    assert first["env"] == other["env"] and first["args"] == other["args"] and first["image"] == other["image"]
    values = {e["name"]: e.get("value") for e in first["env"]}
    assert int(values["INFERD_PIPELINE_PARALLEL"]) == lws["size"]
    assert int(values["INFERD_TENSOR_PARALLEL"]) == first["resources"]["limits"]["nvidia.com/gpu"]
    assert values["NCCL_COMM_ID"] == "$(LWS_LEADER_ADDRESS):29400"
    assert not any(p in other for p in ("startupProbe", "readinessProbe", "livenessProbe", "ports"))  # it does not listen
    plain = of_kind("Deployment", "k8s", "deployment.yaml")["spec"]["template"]["spec"]
    assert leader["securityContext"] == worker["securityContext"] == plain["securityContext"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert first[probe] == plain["containers"][0][probe]
    assert first["startupProbe"]["periodSeconds"] * first["startupProbe"]["failureThreshold"] >= 900 + 900  # joining, and the load
    drain = seconds(values["INFERD_DRAIN_TIMEOUT"]) + first["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert worker["terminationGracePeriodSeconds"] > leader["terminationGracePeriodSeconds"] > drain + 5
    assert lws["restartPolicy"] == "RecreateGroupOnPodRestart"
    labels = lws["leaderTemplate"]["metadata"]["labels"]
    assert labels == lws["workerTemplate"]["metadata"]["labels"]
    inside_set, http = (d["spec"] for d in documents(*path) if d["kind"] == "NetworkPolicy")
    assert inside_set["podSelector"]["matchLabels"] == labels
    assert inside_set["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    only_leader = {**labels, "leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert http["podSelector"]["matchLabels"] == of_kind("Service", *path)["spec"]["selector"] == only_leader
    assert http["ingress"] == [{"ports": [{"port": "http"}]}]


def test_metrics_exist(daemon):
    """Those that autoscaling asks for, and those that the gateway's endpoint picker expects of a server of the kind vllm."""
    served = set(re.findall(r"^([a-z_:]+)[{ ]", daemon.get("/metrics").body.decode(), re.M))
    queries = [t["metadata"]["query"] for t in of_kind("ScaledObject", "k8s", "autoscaling.yaml")["spec"]["triggers"]]
    asked = set(re.findall(r"inferd_[a-z_]+|vllm:[a-z_]+", " ".join(queries)))
    assert asked == {"inferd_requests_waiting", "inferd_kv_blocks_used", "inferd_kv_blocks"}
    assert asked <= served
    assert {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"} <= served


def test_labels_meet():
    deployment = of_kind("Deployment", "k8s", "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"]
    assert labels == of_kind("Service", "k8s", "deployment.yaml")["spec"]["selector"]
    for kind, path in (("InferencePool", "gateway.yaml"), ("PodMonitor", "podmonitor.yaml")):
        assert labels == of_kind(kind, "k8s", path)["spec"]["selector"]["matchLabels"]
    assert labels == of_kind("NetworkPolicy", "k8s", "gateway.yaml")["spec"]["podSelector"]["matchLabels"]
    assert of_kind("InferencePool", "k8s", "gateway.yaml")["spec"]["targetPorts"] == [{"number": 8080}]
    assert of_kind("ScaledObject", "k8s", "autoscaling.yaml")["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    patch = of_kind("Deployment", "k8s", "cuda", "patch.yaml")
    assert patch["metadata"]["name"] == deployment["metadata"]["name"]


def test_nothing_runs_as_root_or_writes():
    spec = of_kind("Deployment", "k8s", "deployment.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(m.get("readOnly") for m in container["volumeMounts"])
    users = set()
    for name in ("Dockerfile", "Dockerfile.cpu"):
        with open(os.path.join(DOCKER, name)) as f:
            users |= set(re.findall(r"^USER (\d+):(\d+)$", f.read(), re.M))
    assert users == {(str(spec["securityContext"]["runAsUser"]), str(spec["securityContext"]["runAsGroup"]))}
    service = documents("compose.yaml")[0]["services"]["inferd"]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["volumes"][0]["read_only"]


def test_compose_mounts_what_exists():
    compose = documents("compose.yaml")[0]
    for name, service in compose["services"].items():
        for mount in service.get("volumes", []):
            source = (mount["source"] if isinstance(mount, dict) else mount.split(":")[0])
            if source.startswith("."):
                assert os.path.isfile(os.path.join(DOCKER, source)), f"{name}: {source}"
    (scrape,) = documents("prometheus.yml")[0]["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["inferd:8080"]}]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/" + compose["services"]["prometheus"]["secrets"][0]
    assert documents("prometheus.yml")[0]["rule_files"] == ["/etc/prometheus/rules.yml"]


def test_prometheus_takes_its_configuration():
    path = os.path.join(DOCKER, "prometheus.yml")
    r = subprocess.run([program("promtool"), "check", "config", "--syntax-only", path], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
