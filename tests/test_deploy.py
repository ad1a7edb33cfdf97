"""What an IT department is given can be read by its tools, is hardened, and starts what exists.

Images are not built here and no unit is started: the files are parsed, and what they say is compared
with each other and with what privcal is.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = ["privcal-site.service", "privcal-post.service"]
ACCOUNT = "10001"

# What the files start.
SITE_RUNS = "site run /srv/privcal/site --folder /srv/privcal/letters --socket /run/privcal/site"
POST_RUNS = (
    "post ${PRIVCAL_MAILBOX} --socket /run/privcal/site --credentials /etc/privcal/post.toml"
)
STARTED = [SITE_RUNS, POST_RUNS, "site run /site --folder /letters", "site health /site"]


# --- systemd -----------------------------------------------------------------------------


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Sections and keys of a unit; a key that is there twice has two values. Strict."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for number, line in enumerate((DEPLOY / name).read_text("utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
            assert section not in found, f"line {number}: [{section}] again"
            found[section] = {}
            continue
        match = re.fullmatch(r"([A-Z]\w+)=(.*\S|)", line)
        assert match, f"line {number} is neither a section nor a setting: {line!r}"
        assert not match[2].endswith("\\"), f"line {number} goes on"
        found[section].setdefault(match[1], []).append(match[2])
    return found


HARDENED = {
    "AmbientCapabilities": [""],
    "CapabilityBoundingSet": [""],
    "DevicePolicy": ["closed"],
    "KeyringMode": ["private"],
    "LimitCORE": ["0"],
    "LockPersonality": ["yes"],
    "MemoryDenyWriteExecute": ["yes"],
    "NoNewPrivileges": ["yes"],
    "PrivateDevices": ["yes"],
    "PrivateTmp": ["yes"],
    "PrivateUsers": ["yes"],
    "ProtectClock": ["yes"],
    "ProtectControlGroups": ["yes"],
    "ProtectHome": ["yes"],
    "ProtectHostname": ["yes"],
    "ProtectKernelLogs": ["yes"],
    "ProtectKernelModules": ["yes"],
    "ProtectKernelTunables": ["yes"],
    "ProtectProc": ["invisible"],
    "ProtectSystem": ["strict"],
    "RemoveIPC": ["yes"],
    "RestrictNamespaces": ["yes"],
    "RestrictRealtime": ["yes"],
    "RestrictSUIDSGID": ["yes"],
    "SystemCallArchitectures": ["native"],
    "SystemCallFilter": ["@system-service", "~@privileged"],
    "UMask": ["0077"],
}


@pytest.mark.parametrize("name", UNITS)
def test_a_service_has_no_more_than_it_needs(name: str) -> None:
    service = unit(name)["Service"]
    assert {key: service.get(key) for key in HARDENED} == HARDENED
    assert (
        service["User"] == service["Group"] == [name.removesuffix(".service").replace("-site", "")]
    )
    assert {"MemoryMax", "TasksMax"} < set(service)


def test_a_site_has_no_network_and_writes_where_it_must_and_not_to_the_data() -> None:
    service = unit("privcal-site.service")["Service"]
    assert service["PrivateNetwork"] == ["yes"]
    assert service["RestrictAddressFamilies"] == ["AF_UNIX"]
    [writable] = service["ReadWritePaths"]
    assert writable.split() == [f"/srv/privcal/{part}" for part in ("site", "ledger", "letters")]
    assert service["WorkingDirectory"] == ["/srv/privcal/site"]


def test_the_post_is_another_account_that_reaches_the_socket_and_nothing_of_the_site() -> None:
    site, post = (unit(name)["Service"] for name in UNITS)
    assert post["SupplementaryGroups"] == site["Group"] != post["Group"]
    assert site["RuntimeDirectoryMode"] == ["0750"]
    [hidden] = post["InaccessiblePaths"]
    assert hidden.split() == ["/srv/privcal", "/var/lib/privcal"]
    assert "ReadWritePaths" not in post


def test_a_sites_marks_are_not_where_its_ledger_is() -> None:
    service = unit("privcal-site.service")["Service"]
    settings = dict(value.split("=", 1) for value in service["Environment"])
    marks = Path(settings["PRIVCAL_MARKS"])
    assert marks.parent == Path("/var/lib") / service["StateDirectory"][0]
    assert not any(marks.is_relative_to(path) for path in service["ReadWritePaths"][0].split())


def test_polars_is_told_not_to_write_code_where_that_is_forbidden() -> None:
    service = unit("privcal-site.service")["Service"]
    assert service["MemoryDenyWriteExecute"] == ["yes"]
    assert "POLARS_SKIP_CPU_CHECK=1" in service["Environment"]


@pytest.mark.parametrize(("name", "command"), [*zip(UNITS, (SITE_RUNS, POST_RUNS), strict=True)])
def test_a_service_does_not_start_over_for_ever(name: str, command: str) -> None:
    parsed = unit(name)
    assert set(parsed) == {"Unit", "Service", "Install"}
    service = parsed["Service"]
    assert service["Restart"] in (["on-failure"], ["always"])
    assert set(parsed["Unit"]) >= {"StartLimitIntervalSec", "StartLimitBurst", "After", "Wants"}
    [line] = service["ExecStart"]
    assert shlex.split(line) == ["/opt/privcal/bin/privcal", *shlex.split(command)]
    assert parsed["Install"]["WantedBy"] == ["multi-user.target"]


def test_a_site_that_says_nothing_is_started_anew() -> None:
    service = unit("privcal-site.service")["Service"]
    assert service["Type"] == ["notify"]
    assert service["WatchdogSec"] == ["2min"]


# --- the image ---------------------------------------------------------------------------


def dockerfile() -> list[list[tuple[str, str]]]:
    """The stages, each a list of instructions."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    stages: list[list[tuple[str, str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        assert word in {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}, line
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, " ".join(rest.split())))
    return stages


def said(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for one, rest in stage if one == word]


def test_the_image_is_made_in_two_stages_and_the_second_installs_nothing() -> None:
    build, image = dockerfile()
    assert said(build, "FROM") == ["python:3.11-slim-bookworm AS build"]
    assert said(image, "FROM") == ["python:3.11-slim-bookworm"]
    assert said(image, "COPY") == ["--from=build /opt/privcal /opt/privcal"]
    without_pip, account = said(image, "RUN")
    assert without_pip.startswith("python -m pip uninstall --yes pip ")
    assert not re.search(r"\b(pip|apt|apt-get|curl|wget|gcc)\b", account)


def test_the_image_is_made_of_this_source_and_of_no_package_of_that_name_from_elsewhere() -> None:
    build, _ = dockerfile()
    wheel, install = said(build, "RUN")
    assert "pip wheel" in wheel
    assert "--no-deps" in wheel
    assert '"$(ls /wheels/privcal-*.whl)[secure]"' in install
    assert "--only-binary :all:" in install
    for sources in said(build, "COPY"):
        for source in sources.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_nothing_else_of_the_source_tree_is_sent_to_the_build() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    copied = {source for copy in said(dockerfile()[0], "COPY") for source in copy.split()[:-1]}
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied


def test_the_image_runs_as_one_fixed_account_that_is_not_root() -> None:
    _, image = dockerfile()
    assert said(image, "USER") == [f"{ACCOUNT}:{ACCOUNT}"]
    assert image[-3][0] == "USER"  # and nothing is run as root after it
    made = said(image, "RUN")[-1]
    assert f"groupadd --gid {ACCOUNT}" in made
    assert f"useradd --uid {ACCOUNT} --gid {ACCOUNT}" in made
    assert f"-m 0700 -o {ACCOUNT} -g {ACCOUNT} /site /ledger /marks" in made
    assert json.loads(said(image, "ENTRYPOINT")[0]) == ["privcal"]
    assert "PRIVCAL_MARKS=/marks/marks.db" in said(image, "ENV")[0].split()


# --- compose -----------------------------------------------------------------------------


def service() -> tuple[dict[str, Any], dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which NVIDIA FLARE brings")
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    assert set(document["services"]) == {"site"}
    return document, document["services"]["site"]


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["target"]: mount for mount in service["volumes"]}


def test_a_container_has_no_more_than_it_needs() -> None:
    _, found = service()
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["user"] == f"{ACCOUNT}:{ACCOUNT}"
    assert found["ulimits"]["core"] == 0
    [temporary] = found["tmpfs"]
    assert temporary.startswith("/tmp:")
    assert {"noexec", "nosuid", "nodev"} < set(temporary.removeprefix("/tmp:").split(","))
    assert found["network_mode"] == "none"
    assert found["mem_limit"] == "8g"
    for word in ("privileged", "cap_add", "ports", "pid", "ipc", "devices", "userns_mode"):
        assert word not in found
    assert found["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}


def test_a_sites_data_are_read_only_and_its_ledger_and_marks_are_volumes_of_their_own() -> None:
    document, found = service()
    places = mounts(found)
    assert set(places) == {"/site", "/data", "/letters", "/ledger", "/marks"}
    assert places["/data"]["read_only"] is True
    for target in ("/site", "/data", "/letters"):
        assert places[target]["bind"] == {"create_host_path": False}
        assert re.fullmatch(r"\$\{PRIVCAL_\w+:\?.+\}", places[target]["source"])
    own = [places[target] for target in ("/ledger", "/marks")]
    assert [mount["type"] for mount in own] == ["volume", "volume"]
    assert {mount["source"] for mount in own} == set(document["volumes"]) == {"ledger", "marks"}


def test_a_container_starts_and_asks_after_the_site_that_is_mounted() -> None:
    _, found = service()
    assert " ".join(found["command"]) in STARTED
    assert found["healthcheck"]["test"] == ["CMD", "privcal", "site", "health", "/site"]


# --- the commands ------------------------------------------------------------------------


def commands() -> set[str]:
    from privcal.cli.app import app

    found = set()
    whole: Any = typer.main.get_command(app)
    for name, command in whole.commands.items():
        found |= {f"{name} {inner}" for inner in getattr(command, "commands", {})} or {name}
    return found


@pytest.mark.parametrize("line", STARTED)
def test_every_command_that_is_started_exists_with_its_options(line: str) -> None:
    from privcal.cli.app import app

    command: Any = typer.main.get_command(app)
    words = shlex.split(line)
    while getattr(command, "commands", None):
        command, words = command.resolve_command(None, words)[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/operation.md"])
def test_every_command_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = {
        f"{a} {b}"
        for a, b in re.findall(
            r"\b(?:privcal|owner|compose run --rm site) (site|federation|ledger|roster|keys|source) (\w+)",
            text,
        )
    }
    assert len(named) >= 4
    assert named <= commands()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / link).exists(), link
