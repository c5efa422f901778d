"""Settings: one place for every bound, strict about names, clear about what is wrong and where it came from."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

import silo.settings
from silo.configuration import Configuration, load, without_password
from silo.directory.errors import InvalidSettings
from silo.directory.lease_settings import LeaseSettings
from silo.endpoints import is_loopback, split_endpoint
from silo.host import check_placement
from silo.messaging.limits import LinkLimits
from silo.settings import (
    ActivationSettings,
    CallSettings,
    MigrationSettings,
    PlacementSettings,
    QueueSettings,
    SiloSettings,
    setting_names,
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SILO_"):
            monkeypatch.delenv(name)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "silo.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _sources(configuration: Configuration) -> dict[str, tuple[str, str]]:
    return {each.name: (each.value, each.source) for each in configuration.effective()}


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(
        tmp_path,
        'cluster = "of-file"\nname = "of-file"\nmeta.zone = "a"\n[queues]\nqueue_calls_max = 1\nqueue_bytes_max = 2\n',
    )
    monkeypatch.setenv("SILO_NAME", "of-environment")
    monkeypatch.setenv("SILO_QUEUES__QUEUE_CALLS_MAX", "3")
    found = _sources(load({"name": "of-flag", "redis": None}, file=file))
    assert found["name"] == ("of-flag", "flag")
    assert found["queues.queue_calls_max"] == ("3", "SILO_QUEUES__QUEUE_CALLS_MAX")
    assert found["cluster"] == ("of-file", str(file))
    assert found["queues.queue_bytes_max"] == ("2", str(file))
    assert found["meta"] == ("zone=a", str(file))
    assert found["calls.hops_max"] == ("4", "default")


def test_the_file_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_CONFIG", str(_file(tmp_path, 'cluster = "prod"')))
    assert load().settings.cluster == "prod"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('clutser = "x"', r"clutser: there is no such setting; did you mean cluster\? \(from .*silo\.toml\)"),
        ("[link]\nchunk_byte = 1", r"link\.chunk_byte: there is no such setting; did you mean link\.chunk_bytes\?"),
        ("queue_calls_max = 1", r"did you mean queues\.queue_calls_max\?"),
        ("[qeues]\nx = 1", r"qeues: there is no such setting; did you mean queues\?"),
        ("cluster = ", "is not TOML"),
    ],
)
def test_an_unknown_name_in_the_file_is_refused_with_a_suggestion(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        load(file=_file(tmp_path, text))


def test_an_unknown_variable_is_refused_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_CLUSTR", "x")
    with pytest.raises(InvalidSettings, match=r"SILO_CLUSTR: .*; did you mean SILO_CLUSTER"):
        load()


def test_an_unknown_name_that_is_like_no_other_is_refused_with_the_command_that_lists_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidSettings, match=r"nonsense: there is no such setting; `silo config` lists all settings"):
        load({"nonsense": "x"})
    monkeypatch.setenv("SILO_NONSENSE", "x")  # that all of them begin with SILO_ makes none like another
    with pytest.raises(InvalidSettings, match=r"SILO_NONSENSE: .*; `silo config` lists all settings"):
        load()


@pytest.mark.parametrize(
    "name",
    [
        *("SILO_SERVICE_HOST", "SILO_SERVICE_PORT_GRPC", "SILO_PORT", "SILO_PORT_7000_TCP_ADDR"),
        *("SILO_GATEWAY_SERVICE_HOST", "SILO_GATEWAY_PORT_7000_TCP", "SILO_TEST_REDIS_SERVER"),
    ],
)
def test_variables_that_kubernetes_or_the_test_suite_set_are_not_ours(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:7000")
    assert load().sources == {}


def test_a_missing_file_is_refused_and_not_overlooked(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load(file=tmp_path / "absent.toml")


def test_a_value_out_of_range_says_which_and_whence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_LINK__LINK_PING_S", "0")
    monkeypatch.setenv("SILO_CALLS__HOPS_MAX", "many")
    with pytest.raises(InvalidSettings) as refused:
        load()
    assert "link.link_ping_s: must be above 0, not 0.0 (from SILO_LINK__LINK_PING_S)" in str(refused.value)
    assert "(from SILO_CALLS__HOPS_MAX)" in str(refused.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_no_time_or_bound_is_zero_negative_or_infinite(value: float) -> None:
    with pytest.raises(InvalidSettings, match="collect_after_s"):
        ActivationSettings(collect_after_s=value)
    with pytest.raises(InvalidSettings, match="link_resume_s"):
        SiloSettings(link=LinkLimits(link_resume_s=value))
    with pytest.raises(InvalidSettings, match="lease_s"):
        LeaseSettings(lease_s=value)


def test_pairs_are_written_as_text_in_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_META", "zone=a, rack=3")
    monkeypatch.setenv("SILO_PLACEMENT__TYPE_POLICIES", "room=prefer-local")
    settings = load().settings
    assert settings.meta == {"zone": "a", "rack": "3"}
    assert settings.placement.type_policies == {"room": "prefer-local"}
    monkeypatch.setenv("SILO_META", "zone")
    with pytest.raises(InvalidSettings, match="'zone' is not of the form name=value"):
        load()


def test_what_a_silo_takes_is_set_by_flag_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_said = load().settings.activation
    assert (nothing_said.activations_max, nothing_said.warm_up_s) == (None, 0.0)
    monkeypatch.setenv("SILO_ACTIVATION__ACTIVATIONS_MAX", "20000")
    file = _file(tmp_path, "[activation]\nwarm_up_s = 60\nactivations_max = 1\n")
    told = load({"activation.activations_in_flight_max": "64"}, file=file).settings.activation
    assert (told.activations_in_flight_max, told.warm_up_s, told.activations_max) == (64, 60.0, 20_000)
    for name in ("activations_in_flight_max", "activations_max"):
        with pytest.raises(InvalidSettings, match=name):
            load({f"activation.{name}": "0"})
    with pytest.raises(InvalidSettings, match="warm_up_s"):
        ActivationSettings(warm_up_s=-1.0)


@pytest.mark.parametrize("listen", ["0.0.0.0:7000", "[::]:7000", "10.1.2.3:7000", "silo-0.silos:7000"])
def test_a_public_listen_without_a_token_needs_insecure_in_so_many_words(listen: str) -> None:
    with pytest.raises(InvalidSettings, match=r"SILO_CLUSTER_TOKEN.*--insecure"):
        SiloSettings(listen=listen, advertise="10.1.2.3:7000")
    assert SiloSettings(listen=listen, advertise="10.1.2.3:7000", insecure=True).insecure
    assert SiloSettings(listen=listen, advertise="10.1.2.3:7000", cluster_token=SecretStr("s")).cluster_token


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.0.1:7000", "localhost:7000", "[::1]:7000"])
def test_a_loopback_listen_needs_no_token(listen: str) -> None:
    assert SiloSettings(listen=listen).listen == listen


def test_a_wildcard_is_no_address_to_advertise() -> None:
    with pytest.raises(InvalidSettings, match="--advertise"):
        SiloSettings(listen="0.0.0.0:7000", insecure=True)
    with pytest.raises(InvalidSettings, match="no address that others can dial"):
        SiloSettings(advertise="0.0.0.0:7000")


def test_cloudpickle_without_a_token_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="cloudpickle without a cluster token"):
        SiloSettings(cloudpickle=True, insecure=True)
    assert SiloSettings(cloudpickle=True, cluster_token=SecretStr("s")).cloudpickle


def test_limits_that_cannot_be_met_together_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="payload_bytes_max must not exceed"):
        SiloSettings(migration=MigrationSettings(payload_bytes_max=2), link=LinkLimits(frame_bytes_max=1))
    with pytest.raises(InvalidSettings, match=r"link\.link_ping_s: must be below link_silence_s"):
        SiloSettings(link=LinkLimits(link_ping_s=4.0, link_silence_s=4.0))
    with pytest.raises(InvalidSettings, match=r"link\.chunk_bytes: must not exceed batch_bytes_max"):
        SiloSettings(link=LinkLimits(chunk_bytes=2, batch_bytes_max=1))


def test_secrets_appear_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_CLUSTER_TOKEN", "hunter2")
    monkeypatch.setenv("SILO_REDIS", "rediss://me:hunter2@db.example:6380/0")
    configuration = load()
    shown = " ".join(f"{each.name} {each.value} {each.source}" for each in configuration.effective())
    for text in (shown, repr(configuration.settings), str(configuration.settings)):
        assert "hunter2" not in text
    assert "rediss://***@db.example:6380/0" in shown
    with pytest.raises(InvalidSettings) as refused:
        load({"redis": "http://me:hunter2@db.example"})
    assert "hunter2" not in str(refused.value)


def test_in_code_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_CLUSTER", "prod")
    assert SiloSettings().cluster == "default"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        SiloSettings().cluster = "other"  # type: ignore[misc]  # what is tested


def test_every_bound_has_its_unit_in_its_name_and_its_purpose_beside_it() -> None:
    without = ("drift", "lease_port", "direct_port")  # a share, and ports
    units = ("_s", "_max", "_bytes", "_frames", "_every_frames", "_every_bytes")
    settings = SiloSettings()
    for name in setting_names():
        group, _, leaf = name.rpartition(".")
        value = getattr(getattr(settings, group) if group else settings, leaf)
        if isinstance(value, int | float) and not isinstance(value, bool) and leaf not in without:
            assert leaf.endswith(units), name
    told = _told_beside(SiloSettings)
    for name in SiloSettings.model_fields:
        is_group = any(each.startswith(f"{name}.") for each in setting_names())
        assert name in told or is_group, name


def _told_beside(group: type) -> set[str]:
    """The fields that a string follows. Read from the source: pydantic would do so at each start of a process."""
    (found,) = ast.parse(inspect.getsource(group)).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id
        for field, text in itertools.pairwise(found.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def test_every_setting_is_read_by_the_product() -> None:
    package = Path(silo.settings.__file__).parent
    linked = [path for link in ("directory", "placement", "migration") for path in (package / link).glob("*.py")]
    read: set[str] = set()
    for path in {*package.rglob("*.py"), *linked} - {package / "settings.py"}:
        read.update(re.findall(r"\.([a-z_]+)\b", path.read_text(encoding="utf-8")))
    checked_here = {"insecure"}  # of no use beyond the check of the settings themselves
    assert {name.rpartition(".")[2] for name in setting_names()} - read == checked_here


def test_the_bounds_of_queues_reach_the_parts_of_a_silo_by_their_names() -> None:
    host = (Path(silo.settings.__file__).parent / "runtime.py").read_text(encoding="utf-8")
    for group in (QueueSettings, CallSettings, ActivationSettings, MigrationSettings):
        unread = {name for name in setting_names(group) if f".{name}" not in host}
        assert unread <= {"shutdown_timeout_s"}  # the host's own


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:65536", "::1:80", "[zz]:1", "host:-1"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint|IPv6|address|permitted|octet|At least"):
        split_endpoint(text)


def test_endpoints_are_split() -> None:
    assert split_endpoint("silo-0.silos:7000") == ("silo-0.silos", 7000)
    assert split_endpoint("[::1]:0") == ("::1", 0)
    assert is_loopback("::1")
    assert not is_loopback("localhost.example")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379", "redis://localhost:6379"),
        ("redis://:p@w@localhost:6379/1", "redis://***@localhost:6379/1"),
        ("redis+sentinel://u:p@a:1,b:2/main", "redis+sentinel://***@a:1,b:2/main"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_placement_rule_that_is_none_is_refused_before_the_cluster_is_touched() -> None:
    settings = SiloSettings(redis="redis://127.0.0.1:1", placement=PlacementSettings(policy="randm"))
    with pytest.raises(InvalidSettings, match=r"placement\.policy.*random"):
        check_placement(settings)
    forced = SiloSettings(redis="redis://127.0.0.1:1", placement=PlacementSettings(force_policies={"room": "nowhere"}))
    with pytest.raises(InvalidSettings, match=r"force_policies\['room'\]"):
        check_placement(forced)
