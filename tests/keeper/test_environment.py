"""What of the server's environment a kernel, and its keeper, can see: real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from himalia.keeper.launch import kernel_environment
from himalia.kernels.kernel import Kernel
from tests.kernels.hosts import Hosting, hosting, text_of

__all__ = ["hosting"]

SECRETS = {
    "HIMALIA_TOKEN": "the-token-of-the-server",
    "HIMALIA_SSL_KEYFILE_PASSWORD": "the-password",
    "AWS_SECRET_ACCESS_KEY": "the-aws-key",
    "GOOGLE_APPLICATION_CREDENTIALS": "/the/google.json",
    "AZURE_CLIENT_SECRET": "the-azure-secret",
    "NATS_CREDS": "the-nats-creds",
    "nats_password": "the-nats-password",
}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The server has these, and one variable that is no secret."""
    for name, value in {**SECRETS, "COLOUR": "green"}.items():
        monkeypatch.setenv(name, value)
    return SECRETS


async def environment_of(hosting: Hosting, kernel: Kernel) -> dict[str, str]:
    """As code in the kernel sees it."""
    result = await hosting.run(kernel, "import json, os; print(json.dumps(dict(os.environ)))")
    found: dict[str, str] = json.loads(text_of(result))
    return found


def started_with(process: psutil.Process) -> str:
    """As the operating system shows the environment that a process was started with."""
    return Path(f"/proc/{process.pid}/environ").read_bytes().decode()


async def test_a_kernel_has_no_secrets_of_the_server(hosting: Hosting, secrets: dict[str, str]) -> None:
    """Neither code nor /proc shows them, of the kernel or of its keeper, also after a restart; the rest is there."""
    await hosting.open()
    kernel = await hosting.start()
    for _ in range(2):
        found = await environment_of(hosting, kernel)
        assert not found.keys() & secrets.keys() and found["COLOUR"] == "green"
        assert kernel.process is not None and kernel.process.pid is not None
        process = psutil.Process(kernel.process.pid)
        keeper = process.parent()
        assert keeper is not None
        shown = started_with(process) + started_with(keeper)
        assert "COLOUR=green" in shown and not [value for value in secrets.values() if value in shown]
        await kernel.restart()


async def test_a_kernel_has_what_was_kept_or_asked_for(hosting: Hosting, secrets: dict[str, str]) -> None:
    """kernel_env_keep lets names and patterns through; the caller's own variables are there, whatever their names."""
    await hosting.open(kernel_env_keep=["HIMALIA_TOKEN", "AWS_*"])
    kernel = await hosting.start(env={"KERNEL_USERNAME": "ann", "NATS_CREDS": "of-ann", "COLOUR": "blue"})
    found = await environment_of(hosting, kernel)
    assert {name: found.get(name) for name in (*secrets, "KERNEL_USERNAME", "COLOUR")} == {
        **dict.fromkeys(secrets),
        "HIMALIA_TOKEN": "the-token-of-the-server",
        "AWS_SECRET_ACCESS_KEY": "the-aws-key",
        "NATS_CREDS": "of-ann",
        "KERNEL_USERNAME": "ann",
        "COLOUR": "blue",
    }


async def test_a_later_server_restarts_a_kernel_without_secrets(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that another server takes over and restarts keeps its variables, and gets none of that server's."""
    server = await hosting.serve()
    started = await server.ask("start")
    server.kill()
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    host = await hosting.open()
    kernel = host.get(started["kernel"])
    await kernel.restart()
    assert not (await environment_of(hosting, kernel)).keys() & SECRETS.keys()


async def test_a_kernel_whose_environment_is_not_known_gets_no_secrets(
    hosting: Hosting, secrets: dict[str, str]
) -> None:
    """The keeper of a kernel that 0.1 started does not remember which environment it was started with."""
    await hosting.open()
    kernel = await hosting.start()
    assert kernel.process is not None
    kernel.process._manager._launch_args.pop("env")
    await kernel.restart()
    found = await environment_of(hosting, kernel)
    assert not found.keys() & secrets.keys() and found["COLOUR"] == "green"


def test_names_are_secret_by_their_beginning() -> None:
    """In either case, and only by their beginning; a kept name has to match as a whole."""
    own = {"HIMALIA": "1", "himalia_token": "2", "MY_AWS_KEY": "3", "AWS_A": "4", "AWS_B": "5", "PATH": "6"}
    assert kernel_environment(own, ["AWS_A"]) == {
        "HIMALIA": "1",
        "MY_AWS_KEY": "3",
        "AWS_A": "4",
        "PATH": "6",
    }
    assert kernel_environment(own, ["*"]) == own
