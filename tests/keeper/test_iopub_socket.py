"""The keeper reads status messages itself: what begins and ends a request, and whether the kernel is busy."""

from __future__ import annotations

from himalia.jupyter.wire import Wire
from himalia.keeper.iopub_socket import REQUESTS_MAX, KernelActivity, is_idle, is_status


def test_a_status_is_recognised() -> None:
    """By its header and content, whatever else is in the message, and whatever rubbish comes."""
    wire = Wire(b"key")
    _, idle = wire.encode("status", {"execution_state": "idle"}, identities=[b"topic"])
    _, busy = wire.encode("status", {"execution_state": "busy"}, identities=[b"topic"])
    _, stream = wire.encode("stream", {"text": '"status" "idle"'}, identities=[b'"status"'])
    assert [is_status(frames) for frames in (idle, busy, stream)] == [True, True, False]
    assert [is_idle(frames) for frames in (idle, busy, stream)] == [True, False, False]
    for rubbish in ([], [b"x"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b'"status"', b'"idle"']):
        assert not is_status(rubbish) and not is_idle(rubbish)


def status_of(state: str, request: str) -> list[bytes]:
    wire = Wire(b"key")
    parent, _ = wire.encode("execute_request", {}, msg_id=request)
    return wire.encode("status", {"execution_state": state}, parent=parent, identities=[b"topic"])[1]


def test_a_kernel_is_busy_until_it_is_idle_for_every_request() -> None:
    """What it answers beside a running cell, on its control channel, does not make it idle; nor does rubbish."""
    activity = KernelActivity()
    assert not activity.is_busy
    activity.apply(status_of("busy", "cell"))
    for state in ("busy", "idle"):
        activity.apply(status_of(state, "asked on control"))
    for rubbish in (
        [],
        [b"<IDS|MSG>"],
        [b"<IDS|MSG>", b"", b"{}", b"[]", b"{}", b"null"],
        status_of("?", "cell"),
    ):
        activity.apply(rubbish)
    assert activity.is_busy
    activity.apply(status_of("idle", "cell"))
    assert not activity.is_busy


def test_what_a_kernel_is_busy_with_is_bounded() -> None:
    """A kernel that never says idle takes no memory for it."""
    activity = KernelActivity()
    for number in range(REQUESTS_MAX + 10):
        activity.apply(status_of("busy", str(number)))
    assert len(activity._running) == REQUESTS_MAX
