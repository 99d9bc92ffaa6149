"""No secret of a stack is in its support bundle, wherever it was planted."""

import base64
import json
import os
import tarfile
from pathlib import Path

import pytest
import yaml
import zstandard
from typer.testing import Result

from busbar import __version__
from busbar.support.bundle import Redactor, is_secret_name, kubeconfig_secrets
from tests.support.bash import programs
from tests.support.cli import busbar
from tests.support.clusters import site

KEY_LINE = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW"
PRIVATE_KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_LINE}\n-----END OPENSSH PRIVATE KEY-----\n"
CLIENT_KEY = base64.b64encode(b"-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEclientkey\n-----END").decode()
URN = "urn:pulumi:prod::busbar::x::"
# Each of them is planted in several places.
PLANTED = {
    "plain ssh key": KEY_LINE,
    "key passphrase": "correct-horse-battery",
    "registry password": "registry-pa55",
    "s3 secret": "s3-planted-secret",
    "client key": CLIENT_KEY,
    "client key line": "MHcCAQEEclientkey",
    "join token": "K10" + "ab" * 32 + "::server:joinpassword",
    "join password": "joinpassword",
    "bearer": "bearer-planted-value",
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
    "url login": "mirror-pass",
    "environment token": "hf_plantedtoken",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cluster = site(workers={"h100": 1}, servers=1, ssh={"key_file": "id_ed25519"})
    config = {
        "busbar:cluster": cluster,
        "busbar:sshPrivateKeyPassword": PLANTED["key passphrase"],
        "busbar:s3SecretKey": {"secure": "v1:ciphertext"},
        "busbar:registryCredentials": {"secure": "v1:ciphertext"},
        "aws:secretKey": PLANTED["s3 secret"],
    }
    stack = {"config": config, "encryptionsalt": "v1:salt"}
    (tmp_path / "Pulumi.prod.yaml").write_text(yaml.safe_dump(stack))
    (tmp_path / "id_ed25519").write_text(PRIVATE_KEY)
    pool = tmp_path / ".busbar/prod/h100"
    pool.mkdir(parents=True)
    users = [{"name": "a", "user": {"client-key-data": CLIENT_KEY}}]
    (tmp_path / ".busbar/prod/kubeconfig").write_text(yaml.safe_dump({"users": users}))
    log = "\n".join(
        [
            "gpu-1:12:34 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",
            f"+ export HF_TOKEN={PLANTED['environment token']} NCCL_DEBUG=INFO",
            f"curl -H 'Authorization: Bearer {PLANTED['bearer']}' https://x:{PLANTED['url login']}@mirror/",
            f"join with {PLANTED['join token']} failed; jwt {PLANTED['jwt']}",
            f"printed: {KEY_LINE} and {PLANTED['key passphrase']} and {PLANTED['s3 secret']}",
            f"docker login -u u -p {PLANTED['registry password']}; {CLIENT_KEY}",
            "-----BEGIN RSA PRIVATE KEY-----",
            "MIIEpAIBAAKCAQEAplantedrsa",
            "a second line of plantedrsa",
            "-----END RSA PRIVATE KEY-----",
            '{"password": "registry-pa55", "user": "u"}',
        ]
    )
    (pool / "nccl.log.zst").write_bytes(zstandard.compress(log.encode()))
    verdict = {"verdict": "fail", "log_tail": log, "token": "joinpassword"}
    (pool / "verdict.json").write_text(json.dumps(verdict))
    (pool / "cut.log.zst").write_bytes(b"no zstd")
    (pool / "report.html").write_text(f"<pre>{log}</pre>")
    # What `pulumi config get` and `pulumi stack export` answer.
    state = {
        "manifest": {"time": "2026-01-01T00:00:00Z", "version": "v3.259.0"},
        "resources": [{"urn": f"{URN}control-plane", "inputs": {"stdin": KEY_LINE}}],
        "pending_operations": [{"type": "creating", "resource": {"urn": f"{URN}pool"}}],
    }
    (tmp_path / "state.json").write_text(json.dumps({"deployment": state}))
    credentials = json.dumps({"r": {"username": "u", "password": PLANTED["registry password"]}})
    pulumi = (
        "case $1$3 in\n"
        f"configbusbar:registryCredentials) echo '{credentials}' ;;\n"
        f"config*) echo {PLANTED['s3 secret']} ;;\nstack*) cat {tmp_path}/state.json ;;\n"
        "version*) echo v3.259.0 ;;\nesac\n"
    )
    programs(tmp_path / "bin", {"pulumi": pulumi})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bundle(project: Path, *options: str) -> tuple[Result, dict[str, str]]:
    """The command's result, and the texts of the bundle by name."""
    path = project / "b.tar.gz"
    done = busbar("support-bundle", "prod", "-o", str(path), *options)
    assert done.exit_code == 0, done.output
    texts = {}
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name.endswith(".zst"):
                content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
            texts[member.name.removeprefix("b/")] = content.decode()
    return done, texts


def test_no_planted_secret_is_anywhere_in_the_bundle(project: Path) -> None:
    done, texts = bundle(project)
    everything = "\n".join([done.output, *texts, *texts.values()])
    assert [name for name, secret in PLANTED.items() if secret in everything] == []
    for more in ("plantedrsa", "v1:ciphertext", "v1:salt", "registry-pa55"):
        assert more not in everything, more


def test_what_is_needed_to_help_is_in_the_bundle(project: Path) -> None:
    _, texts = bundle(project)
    assert set(texts) == {
        *("README.txt", "versions.json", "preflight.json", "engine.json", "files.json"),
        *("files/h100/nccl.log.zst", "files/h100/verdict.json"),
    }
    versions = json.loads(texts["versions.json"])
    assert versions["pulumi"] == "v3.259.0"
    assert versions["busbar"].startswith(f"busbar {__version__} (commit ")
    assert None not in versions["packages"].values()
    assert "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB" in texts["files/h100/nccl.log.zst"]
    assert json.loads(texts["files/h100/verdict.json"])["verdict"] == "fail"
    engine = json.loads(texts["engine.json"])
    assert engine["resources"] == [{"urn": f"{URN}control-plane"}]
    assert engine["pending"] == [{"type": "creating", "urn": f"{URN}pool"}]
    assert "stored in plain text" in texts["preflight.json"], "why there are no facts"
    left_out = [each["name"] for each in json.loads(texts["files.json"])["left_out"]]
    assert left_out == ["h100/cut.log.zst", "h100/report.html", "kubeconfig"]


def test_of_repeated_measurements_the_newest_and_all_records_are_in_the_bundle(project: Path) -> None:
    pool = project / ".busbar/prod/h100"
    (pool / "history.jsonl").write_text(json.dumps({"settings": {"env HF_TOKEN": "hf_planted"}}) + "\n")
    for number in range(5):
        run = pool / "runs" / f"2026112{number}T000000Z-run-1"
        run.mkdir(parents=True)
        (run / "verdict.json").write_text("{}")
    _, texts = bundle(project)
    runs = sorted(name.split("/")[3][:8] for name in texts if name.startswith("files/h100/runs/"))
    assert runs == ["20261122", "20261123", "20261124"]
    assert "env HF_TOKEN" in texts["files/h100/history.jsonl"]
    assert "hf_planted" not in texts["files/h100/history.jsonl"]


def test_the_bundle_is_readable_by_its_owner_only_and_never_overwrites(project: Path) -> None:
    bundle(project, "--no-preflight")
    assert (project / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    again = busbar("support-bundle", "prod", "-o", str(project / "b.tar.gz"))
    assert again.exit_code == 1
    assert "cannot be written" in again.stderr


@pytest.mark.parametrize("text", [f"config: [{KEY_LINE}", f"config: {{busbar:x: [2026-13-01, {KEY_LINE}]}}"])
def test_the_stack_file_is_not_in_the_bundle_and_need_not_be_yaml(project: Path, text: str) -> None:
    (project / "Pulumi.prod.yaml").write_text(text)
    (project / "bin/pulumi").chmod(0o644)
    _, texts = bundle(project)
    assert json.loads(texts["versions.json"])["pulumi"] == "pulumi on PATH cannot be run: Permission denied"
    assert "not valid YAML" in texts["preflight.json"]
    assert KEY_LINE not in "".join(texts.values())


def test_without_the_passphrase_of_the_stack_the_bundle_says_so_and_has_all_else(project: Path) -> None:
    config = {"busbar:cluster": site(ssh={}), "busbar:sshPrivateKey": {"secure": "v1:ciphertext"}}
    (project / "Pulumi.prod.yaml").write_text(yaml.safe_dump({"config": config}))
    (project / "bin/pulumi").write_text("#!/bin/bash\necho 'error: incorrect passphrase' >&2; exit 255\n")
    _, texts = bundle(project)
    assert "cannot be read: incorrect passphrase. Fix: " in json.loads(texts["preflight.json"])["error"]
    assert "the state of stack prod cannot be read: incorrect passphrase" in texts["engine.json"]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("agent-token: abcdef", "agent-token: [secret]"),
        ('"s3SecretKey" : "a b"', '"s3SecretKey" : [secret]'),
        ("AWS_SECRET_ACCESS_KEY=abc,x", "AWS_SECRET_ACCESS_KEY=[secret],x"),
        ('password="a token=b c" d', "password=[secret] d"),
        ("host_key: ssh-ed25519 AAAA", "host_key: ssh-ed25519 AAAA"),
        ("author: me; keys: 3; tokenizer=x", "author: me; keys: 3; tokenizer=x"),
        ("https://u:p@h/x and https://h/x", "https://[secret]@h/x and https://h/x"),
        ("https://ghp_abc@h/x", "https://[secret]@h/x"),
        ("Basic dXNlcjpwYXNz", "Basic [secret]"),
    ],
)
def test_texts_are_redacted_by_the_names_and_forms_of_secrets(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


@pytest.mark.parametrize(
    ("known", "text", "redacted"),
    [
        (["abc1", "abc1-and-more"], "x abc1-and-more abc1", "x [secret] [secret]"),
        (["abc"], "abcdef", "abcdef"),
        (["line1\nline2\n"], r'"line1\nline2"', '"[secret]"'),
        (["line1\nline2\n"], "line2", "[secret]"),
    ],
)
def test_a_known_secret_is_replaced_and_each_of_its_lines(known: list[str], text: str, redacted: str) -> None:
    assert Redactor(known).text(text) == redacted


def test_secrets_in_lists_and_keys_of_a_structured_value_are_replaced() -> None:
    value = {"args": ["abcdef", {"password": "x"}, ["abcdef"]], "https://u:p@h": 2, "token": False}
    redacted = {**value, "args": ["[secret]", {"password": "[secret]"}, ["[secret]"]]}
    redacted["https://[secret]@h"] = redacted.pop("https://u:p@h")
    assert Redactor(["abcdef"]).value(value) == redacted


def test_the_secrets_of_a_kubeconfig_are_known_as_they_are_written_and_decoded() -> None:
    user = {"token": "not base64!", "client-key-data": base64.b64encode(b"the key").decode()}
    text = yaml.safe_dump({"users": [{"name": "admin", "user": user}]})
    assert set(kubeconfig_secrets(text)) == {*user.values(), "the key"}
    assert list(kubeconfig_secrets("{")) == []


def test_a_link_to_a_file_elsewhere_is_not_followed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.log").write_text("of somebody else\n")
    (project / ".busbar/prod/link.log").symlink_to(tmp_path / "elsewhere.log")
    _, texts = bundle(project, "--no-preflight")
    assert not [name for name in texts if name.endswith("link.log")]


def test_names_of_secrets_are_told_from_other_names() -> None:
    secrets = ["password", "adminPassword", "agent-token", "s3SecretKey", "s3_access_key", "auth", "HF_TOKEN"]
    others = ["host_key", "key_file", "secrets-encryption", "author", "authentication-config", "tokenizer"]
    assert [name for name in [*secrets, *others] if is_secret_name(name)] == secrets
