"""The phases of a hosted kernel, and the transitions between them. Decides only; ``KernelLifecycle`` acts."""

from __future__ import annotations

from enum import Enum

from himalia.protocol.models import KernelState


class KernelPhase(Enum):
    """What the server knows about a kernel; whether it is idle or busy is known from its own messages."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    DEAD = "dead"
    DETACHED = "detached"


class PhaseEvent(Enum):
    ANSWERED = "answered"
    """Its process answered, on IOPub too."""
    RESTART = "restart"
    """A new process is about to be started."""
    END = "end"
    """Its process has ended, or does not answer any more."""
    DETACH = "detach"
    """It is left running, for another server."""


_ANSWERED, _RESTART, _END, _DETACH = PhaseEvent
_TRANSITIONS = {
    (KernelPhase.STARTING, _ANSWERED): KernelPhase.RUNNING,
    (KernelPhase.STARTING, _RESTART): KernelPhase.RESTARTING,
    (KernelPhase.STARTING, _END): KernelPhase.DEAD,
    (KernelPhase.STARTING, _DETACH): KernelPhase.DETACHED,
    (KernelPhase.RUNNING, _RESTART): KernelPhase.RESTARTING,
    (KernelPhase.RUNNING, _END): KernelPhase.DEAD,
    (KernelPhase.RUNNING, _DETACH): KernelPhase.DETACHED,
    (KernelPhase.RESTARTING, _ANSWERED): KernelPhase.RUNNING,
    (KernelPhase.RESTARTING, _END): KernelPhase.DEAD,
    (KernelPhase.RESTARTING, _DETACH): KernelPhase.DETACHED,
    (KernelPhase.DEAD, _ANSWERED): KernelPhase.DEAD,
    (KernelPhase.DEAD, _RESTART): KernelPhase.RESTARTING,
    (KernelPhase.DEAD, _END): KernelPhase.DEAD,
    (KernelPhase.DEAD, _DETACH): KernelPhase.DETACHED,
    (KernelPhase.DETACHED, _ANSWERED): KernelPhase.DETACHED,
    (KernelPhase.DETACHED, _DETACH): KernelPhase.DETACHED,
}


def next_phase(phase: KernelPhase, event: PhaseEvent) -> KernelPhase:
    """Return the phase after an event; ``RuntimeError`` for an event that cannot happen in this phase.

    ========== ======== ========== ==== ========
    phase      ANSWERED RESTART    END  DETACH
    ========== ======== ========== ==== ========
    STARTING   RUNNING  RESTARTING DEAD DETACHED
    RUNNING             RESTARTING DEAD DETACHED
    RESTARTING RUNNING             DEAD DETACHED
    DEAD       DEAD     RESTARTING DEAD DETACHED
    DETACHED   DETACHED                 DETACHED
    ========== ======== ========== ==== ========

    A dead kernel is restarted if the settings say so. An answer that comes when it is dead comes too late. To be
    ending is no phase: the end of a kernel may begin in any phase, and lets a restart finish or fail first.
    """
    try:
        return _TRANSITIONS[phase, event]
    except KeyError:
        raise RuntimeError(f"a kernel that is {phase.value} cannot {event.value}") from None


def public_state(phase: KernelPhase, reported: KernelState) -> KernelState:
    """Return the state that clients see: that of the phase, or what the kernel itself reported while it runs."""
    return _PUBLIC_STATES.get(phase, reported)


_PUBLIC_STATES = {
    KernelPhase.STARTING: KernelState.STARTING,
    KernelPhase.RESTARTING: KernelState.RESTARTING,
    KernelPhase.DEAD: KernelState.DEAD,
}
