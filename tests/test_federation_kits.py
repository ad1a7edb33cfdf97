"""A provisioned kit is closed; whatever is opened in it is found, and said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privcal.errors import InputError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.federation.checks import check, closed
from privcal.federation.hardening import ROLES, SITE_RESOURCES
from privcal.federation.kits import init, load
from privcal.federation.names import SITE_EXECUTOR
from privcal.federation.project import Project

PROJECT = """
name = "trial"
[server]
host = "localhost"
port = 18002
[[sites]]
name = "hospital-1"
org = "one"
[[sites]]
name = "hospital-2"
org = "two"
[[calibrators]]
name = "ann@lab.org"
org = "lab"
"""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    (folder / "project.toml").write_text(PROJECT)
    init(folder / "project.toml", folder / "kits")
    return folder / "kits"


@pytest.fixture
def kit(kits: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy to open."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(kits / name, tmp_path / name))

    return copy


# --- the project file --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "trial"', "", "name of the file is missing"),
        ('name = "trial"', 'name = "../x"', "name of the file must be letters"),
        ('name = "trial"', 'name = "trial"\nextra = 1', "unknown key 'extra'"),
        ("port = 18002", "port = 80", "port of [server] must be"),
        ("port = 18002", 'port = "18002"', "port of [server] must be"),
        ('host = "localhost"', 'host = "a b"', "host of [server] must be"),
        ('host = "localhost"', "", "host of [server] is missing"),
        ('name = "hospital-2"', 'name = "hospital-1"', "hospital-1 is there twice"),
        ('name = "hospital-2"', 'name = "Hospital-1"', "Hospital-1 is there twice"),
        ('name = "hospital-2"', 'name = "ca"', "nobody can be called ca"),
        ('name = "hospital-2"', 'name = "a/b"', "name of [[sites]] number 2 must be"),
        ('org = "two"', "", "org of [[sites]] number 2 is missing"),
        ('name = "ann@lab.org"', 'name = "ann"', "must be an e-mail address"),
        ("[[calibrators]]", "[[askers]]", "unknown key 'askers'"),
        ("[server]", "[server", "is not TOML"),
    ],
)
def test_a_wrong_project_file_is_one_clear_sentence(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    file = tmp_path / "project.toml"
    file.write_text(PROJECT.replace(old, new))
    with pytest.raises(InputError, match=r"^[^\n]+$") as error:
        init(file, tmp_path / "kits")
    assert says in str(error.value)
    assert str(file) in str(error.value)
    assert not (tmp_path / "kits").exists()


def test_a_federation_needs_sites_and_calibrators(tmp_path: Path) -> None:
    file = tmp_path / "project.toml"
    file.write_text(PROJECT.split("[[calibrators]]")[0])
    with pytest.raises(InputError, match=r"at least one \[\[calibrators\]\]"):
        Project.load(file)


def test_kits_are_not_made_over_others(kits: Path) -> None:
    with pytest.raises(InputError, match="is there already"):
        init(kits.parent / "project.toml", kits)


# --- fresh kits --------------------------------------------------------------------------


def test_provisioning_is_quiet_and_leaves_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project.toml").write_text(PROJECT)
    made = init(tmp_path / "project.toml", tmp_path / "kits")
    assert capfd.readouterr() == ("", "")
    names = {"localhost", "hospital-1", "hospital-2", "ann@lab.org"}
    assert {path.name for path in made} == names
    assert {p.name for p in (tmp_path / "kits").iterdir()} == names | {"ca", "federation.json"}
    assert load(tmp_path / "kits") == Project.load(tmp_path / "project.toml")


@pytest.mark.parametrize("name", ["localhost", "hospital-1", "hospital-2", "ann@lab.org"])
def test_a_fresh_kit_is_closed(kits: Path, name: str) -> None:
    findings = check(kits / name)
    assert closed(findings), [finding for finding in findings if not finding.ok]


def test_private_files_are_their_owners_alone(kits: Path) -> None:
    for folder in ("localhost", "hospital-1", "ann@lab.org", "ca"):
        for path in (kits / folder, *(kits / folder).rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path
    assert len(list(kits.glob("*/startup/*.key"))) == 4
    assert "private key" in (kits / "ca" / "README.txt").read_text()


def test_the_authoritys_key_is_in_no_kit(kits: Path) -> None:
    key = json.loads((kits / "ca" / "cert.json").read_text())["root_pri_key"].splitlines()[1]
    holders = [p for p in kits.rglob("*") if p.is_file() and key in p.read_text(errors="ignore")]
    assert holders == [kits / "ca" / "cert.json"]


def test_flares_own_authorizer_lets_nobody_do_more(kits: Path) -> None:
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

    policy = json.loads((kits / "hospital-1" / "local" / "authorization.json").read_text())
    authorizer = FLAuthorizer("one", policy)
    rights = {*COMMAND_CATEGORIES, "byoc", "submit_job", "clone_job", "server-predeployed-flwr"}
    ann, bob = (Person(name, "one", "lead") for name in ("ann@lab.org", "bob@lab.org"))
    for role in (*ROLES, "anything"):
        user = Person("ann@lab.org", "one", role)
        may = {r for r in rights if authorizer.authorize(AuthzContext(r, user, bob))[0]}
        assert may == ({"submit_job"} if role == "lead" else set())
    own = {r for r in rights if authorizer.authorize(AuthzContext(r, ann, ann))[0]}
    assert own - {"submit_job"} == {r for r, c in COMMAND_CATEGORIES.items() if c == "manage_job"}


# --- opened kits -------------------------------------------------------------------------


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


def rights(role: str, **values: Any) -> Callable[[Path], None]:
    return edit("local/authorization.json", lambda d: d["permissions"][role].update(values))


def resources(**values: Any) -> Callable[[Path], None]:
    return edit("local/resources.json", lambda d: d.update(values))


def add_component(**component: Any) -> Callable[[Path], None]:
    return edit("local/resources.json", lambda d: d["components"].append(component))


def write(name: str, text: str = "{}") -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return apply


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names]  # type: ignore[return-value]


STREAMER = {
    "id": "site_log_streamer",
    "path": "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer",
}
RECEIVER = {
    "id": "log_receiver",
    "path": "nvflare.app_common.logging.job_log_receiver.JobLogReceiver",
}
SHARED = {"path": "nvflare...Persistor", "args": {"root_dir": "/tmp/nvflare/snapshot-storage"}}


@pytest.mark.parametrize(
    ("opening", "rule", "says"),
    [
        (edit("local/authorization.json", lambda d: d["permissions"].update(project_admin="any")), "roles", "project_admin has 'any'"),
        (edit("local/authorization.json", lambda d: d["permissions"].update(project_admin="any")), "custom code", "project_admin may bring code"),
        (edit("local/authorization.json", lambda d: d["permissions"].update(boss={"byoc": "none"})), "roles", "role 'boss'"),
        (rights("lead", byoc="any"), "custom code", "lead may bring code"),
        (rights("org_admin", byoc=["none", "o:one"]), "custom code", "org_admin may bring code"),
        (rights("lead", shell_commands="o:site"), "shell", "lead may read files here"),
        (rights("lead", cat="any"), "other rights", "a line for 'cat'"),
        (rights("lead", operate="o:site"), "operate", "from afar"),
        (rights("member", view="any"), "other rights", "member may view"),
        (rights("lead", **{"server-predeployed-flwr": "any"}), "flower", "Flower"),
        (remove("local/authorization.json"), "authorization", "is missing"),
        (remove("local/authorization.json", "local/authorization.json.default"), "authorization", "is missing"),
        (write("local/authorization.json", "{"), "authorization", "cannot be read"),
        (remove("local/resources.json"), "resources", "is missing"),
        (write("local/resources.json", "["), "resources", "cannot be read"),
        (resources(class_allow_list=[SITE_EXECUTOR, "nvflare.app_common."]), "classes", "may build 'nvflare.app_common.'"),
        (resources(class_allow_list=["privcal."]), "classes", "may build 'privcal.'"),
        (resources(class_allow_list=["*"]), "classes", "may build '*'"),
        (edit("local/resources.json", lambda d: d.pop("class_allow_list")), "classes", "no class_allow_list"),
        (resources(class_list_enforcement_mode="warn"), "enforcement", "only warned"),
        (resources(components=SITE_RESOURCES["components"][1:]), "guard", "shell commands"),
        (edit("local/resources.json", lambda d: d["components"][0].update(disabled=True)), "guard", "shell commands"),
        (edit("local/resources.json", lambda d: d.pop("app_validator")), "jobs", "not looked at"),
        (resources(allow_log_streaming=True), "logs", "may be sent to the server"),
        (edit("local/resources.json", lambda d: d.pop("allow_log_streaming")), "logs", "may be sent"),
        (add_component(**STREAMER), "logs", "streams this site's logs"),
        (add_component(**STREAMER), "components", "unknown component 'site_log_streamer'"),
        (edit("local/resources.json", lambda d: d["components"][3].update(path="other.Launcher")), "components", "process_launcher has another class"),
        (edit("local/resources.json", lambda d: d["components"][1]["args"].update(num_of_gpus=2)), "gpus", "offers 2 GPUs"),
        (resources(patients=812), "keys", "key 'patients'; FLARE sends"),
        (edit("local/resources.json", lambda d: d["client"].update(site_config={})), "keys", "client"),
        (edit("startup/fed_client.json", lambda d: d.update(require_signed_jobs=False)), "signed jobs", "not true"),
        (edit("startup/fed_client.json", lambda d: d.pop("require_signed_jobs")), "signed jobs", "not true"),
        (edit("startup/fed_client.json", lambda d: d["client"].update(connection_security="clear")), "mutual TLS", "not mtls"),
        (remove("startup/rootCA.pem"), "mutual TLS", "rootCA.pem is missing"),
        (edit("startup/fed_client.json", lambda d: d.update(components=[STREAMER])), "start-up file", "overrules"),
        (edit("startup/fed_client.json", lambda d: d["client"].update(site_config={"a": 1})), "start-up file", "the server is sent"),
        (write("local/more__resources.json"), "more configuration", "more__resources.json adds"),
        (write("startup/x__j_resources.json"), "more configuration", "adds to the configuration"),
        (write("local/job_resources.json"), "more configuration", "adds to the configuration"),
        (write("local/comm_config.json"), "more configuration", "adds to the configuration"),
        (write("local/custom/evil.py", ""), "code", "local/custom"),
        (write("a-job/app_hospital-1/custom/evil.py", ""), "code", "came with a job"),
        (lambda folder: (folder / "startup" / "client.key").chmod(0o644), "private files", "client.key can be read by others"),
        (lambda folder: (folder / "local" / "resources.json").chmod(0o666), "private files", "resources.json can be changed"),
        (lambda folder: (folder / "local").chmod(0o777), "private files", "local can be changed"),
        (write("state/cert.json"), "authority", "state looks like"),
    ],
)  # fmt: skip
def test_what_is_opened_at_a_site_is_found(
    kit: Callable[[str], Path], opening: Callable[[Path], None], rule: str, says: str
) -> None:
    folder = kit("hospital-1")
    opening(folder)
    [finding] = [finding for finding in check(folder) if finding.rule == rule]
    assert not finding.ok
    assert says in finding.sentence
    assert finding.remedy


@pytest.mark.parametrize(
    ("opening", "rule", "says"),
    [
        (rights("project_admin", byoc="any"), "custom code", "project_admin may bring code"),
        (resources(class_allow_list=["nvflare."]), "classes", "may build 'nvflare.'"),
        (add_component(**RECEIVER), "logs", "takes logs from sites"),
        (resources(snapshot_persistor=SHARED), "storage", "snapshots are not kept below"),
        (edit("local/resources.json", lambda d: d["components"][1].update(args={"uri_root": "/tmp/nvflare/jobs-storage"})), "storage", "jobs are not kept below"),
        (edit("local/resources.json", lambda d: d["components"][0]["args"].update(max_jobs=1000)), "components", "job_scheduler has another class or other arguments"),
        (edit("startup/fed_server.json", lambda d: d.update(require_signed_jobs=False)), "signed jobs", "not true"),
        (edit("startup/fed_server.json", lambda d: d["servers"][0].update(connection_security="tls")), "mutual TLS", "not mtls"),
    ],
)  # fmt: skip
def test_what_is_opened_at_the_server_is_found(
    kit: Callable[[str], Path], opening: Callable[[Path], None], rule: str, says: str
) -> None:
    folder = kit("localhost")
    opening(folder)
    [finding] = [finding for finding in check(folder) if finding.rule == rule]
    assert not finding.ok
    assert says in finding.sentence


def test_flares_own_kit_is_open_in_many_ways(tmp_path: Path, kits: Path) -> None:
    """Without our files, as FLARE's tool makes it: the rules look at the defaults."""
    from privcal.federation.kits import _run_provisioner

    made, _ = _run_provisioner(load(kits), tmp_path)
    wrong = {finding.rule for finding in check(made / "hospital-1") if not finding.ok}
    assert {"roles", "custom code", "shell", "classes", "guard", "jobs", "logs"} <= wrong


def test_what_is_no_kit_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a participant's folder"):
        check(tmp_path)


# --- guards ------------------------------------------------------------------------------

CAT = """
import sys, types
from nvflare.fuel.f3.message import Message as Cell
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

if sys.argv[1] == "guarded":
    from privcal.federation.guard import SiteGuard
    SiteGuard()
AuditService.initialize(sys.argv[2] + ".audit")
from nvflare.apis.fl_context import FLContextManager
engine = types.SimpleNamespace(new_context=FLContextManager().new_context)
cell = types.SimpleNamespace(register_request_cb=lambda **_: None)
agent = FedAdminAgent("site", cell, engine)
for processor in ClientRequestProcessors.request_processors:
    agent.register_processor(processor)
request = Message(topic="sys.shell", body="cat " + sys.argv[2])  # and no header that asks for rights
print(agent._dispatch_request(Cell(payload=request)).payload.body)
"""


@pytest.mark.parametrize(("guard", "leaks"), [("none", True), ("guarded", False)])
def test_a_server_that_asks_for_no_rights_reads_files_unless_the_guard_is_there(
    tmp_path: Path, guard: str, leaks: bool
) -> None:
    secret = tmp_path / "rows.csv"
    secret.write_text("name,diagnosis")
    done = subprocess.run(
        [sys.executable, "-c", CAT, guard, str(secret)], capture_output=True, text=True, check=True
    )
    assert ("diagnosis" in done.stdout) is leaks, done.stderr
    assert leaks or "invalid_request" in done.stdout


def test_the_guard_hides_texts_of_exceptions_however_a_site_is_started() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "from privcal.federation.guard import SiteGuard; SiteGuard()\n"
            "import os; from nvflare.security.logging import secure_format_exception as show\n"
            "print(show(ValueError('row 7')), os.environ['NVFLARE_SECURE_LOGGING'])",
        ],
        env={k: v for k, v in os.environ.items() if k != "NVFLARE_SECURE_LOGGING"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "<class 'ValueError'> true\n"


DELETE = """
import sys, types
from unittest import mock
from nvflare.fuel.f3.message import Message as Cell
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_engine_internal_spec import ClientEngineInternalSpec
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

if sys.argv[1] == "guarded":
    from privcal.federation.guard import SiteGuard
    SiteGuard()
engine = mock.MagicMock(spec=ClientEngineInternalSpec)
engine.delete_run = lambda job: ClientEngine.delete_run(engine, job)
engine.args = types.SimpleNamespace(workspace=sys.argv[2])
for processor in ClientRequestProcessors.request_processors:
    if TrainingTopic.DELETE_RUN in processor.get_topics():
        request = Message(topic=TrainingTopic.DELETE_RUN, body="")
        request.set_header(RequestHeader.JOB_ID, sys.argv[3])
        print(processor.process(request, engine).body)
"""
A_JOB = "3e312c4a-1d56-4d84-b5bc-e66db991c897"


@pytest.mark.parametrize(
    ("guard", "name", "goes"),
    [("none", "local", True), ("guarded", "local", False), ("guarded", "data", False), ("guarded", A_JOB, True)],
)  # fmt: skip
def test_a_server_cannot_have_a_sites_own_folders_removed_as_if_they_were_jobs(
    kit: Callable[[str], Path], guard: str, name: str, goes: bool
) -> None:
    folder = kit("hospital-1")
    (folder / name).mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", DELETE, guard, str(folder), name],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (folder / name).exists() is not goes, done.stderr
    assert ("not the name of a job" in done.stdout) is not goes


GOOD = {
    "format_version": 2,
    "executors": [{"tasks": ["*"], "executor": {"path": SITE_EXECUTOR, "args": {}}}],
}


def signed_app(kits: Path, who: str, where: Path, files: dict[str, str]) -> Path:
    """An app at a site's place for it, signed by a participant."""
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    app = where / "hospital-1" / "job" / "app_hospital-1"
    shutil.copytree(kits / "hospital-1" / "startup", where / "hospital-1" / "startup")
    for name, text in files.items():
        write(name, text)(app)
    [key] = (kits / who / "startup").glob("*.key")
    sign_folders(str(app), load_private_key_file(str(key)), str(key.with_suffix(".crt")))
    return app


@pytest.mark.parametrize(
    ("change", "files", "who", "says"),
    [
        ({}, {}, "ann@lab.org", ""),
        ({}, {"config/config_fed_server.json": "{}"}, "ann@lab.org", ""),
        ({}, {"custom/evil.py": ""}, "ann@lab.org", "no code"),
        ({}, {"config/config_fed_client.conf": ""}, "ann@lab.org", "no files but"),
        ({}, {"config/evil.py": ""}, "ann@lab.org", "no files but"),
        ({"task_result_filters": [{"tasks": ["*"], "filters": []}]}, {}, "ann@lab.org", "no filters"),
        ({"components": [{"id": "x", "path": SITE_EXECUTOR}]}, {}, "ann@lab.org", "no components"),
        ({"x": 1}, {}, "ann@lab.org", "keys"),
        ({"executors": []}, {}, "ann@lab.org", "exactly one"),
        ({"executors": [{"tasks": ["*"], "executor": {"path": "os.system"}}]}, {}, "ann@lab.org", "no other class"),
        ({"executors": [{"tasks": ["*"], "executor": {"path": SITE_EXECUTOR, "args": {"a": 1}}}]}, {}, "ann@lab.org", "no other class"),
        ({}, {}, "hospital-2", "who is not a calibrator"),
        ({}, {}, "localhost", "who is not a calibrator"),
    ],
)  # fmt: skip
def test_a_site_takes_one_kind_of_job(
    kits: Path, tmp_path: Path, change: dict[str, Any], files: dict[str, str], who: str, says: str
) -> None:
    from privcal.federation.guard import JobGuard

    config = {"config/config_fed_client.json": json.dumps(GOOD | change)}
    app = signed_app(kits, who, tmp_path, config | files)
    wrong, facts = JobGuard().validate(str(app))
    assert facts == {}
    assert wrong == "" if not says else says in wrong


def test_a_job_changed_after_signing_is_refused(kits: Path, tmp_path: Path) -> None:
    from privcal.federation.guard import JobGuard

    config = {"config/config_fed_client.json": json.dumps(GOOD)}
    app = signed_app(kits, "ann@lab.org", tmp_path, config)
    write("config/config_fed_client.json", json.dumps(GOOD | {"format_version": 1}))(app)
    assert "not signed" in JobGuard().validate(str(app))[0]


# --- commands ----------------------------------------------------------------------------


def test_commands_tell_what_they_did(run: Any, tmp_path: Path) -> None:
    (tmp_path / "project.toml").write_text(PROJECT)
    code, out, _ = run(
        "federation", "init", tmp_path / "project.toml", "--out", tmp_path / "k", "--json"
    )
    assert code == 0
    assert len(json.loads(out)["kits"]) == 4
    code, out, _ = run("federation", "check", tmp_path / "k" / "hospital-1", "--json")
    assert code == 0
    assert json.loads(out)["closed"] is True
    rights("lead", byoc="any")(tmp_path / "k" / "hospital-1")
    code, out, _ = run("federation", "check", tmp_path / "k" / "hospital-1")
    assert code == 1
    assert "lead may bring code" in out
    assert "is open: 1 of" in out
    code, out, _ = run("federation", "down", tmp_path / "k")
    assert (code, out) == (0, "nothing was running\n")
    assert run("federation", "up")[0] == 2


def test_without_flare_one_sentence_says_what_to_install(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.federation.commands.find_spec", lambda name: None)
    for arguments in (("init", "p.toml", "--out", "k"), ("up", "k"), ("down", "k")):
        code, out, err = run("federation", *arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "pip install privcal[federation]" in err
