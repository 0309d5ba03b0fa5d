"""Whether a kernel's sockets are encrypted: by CURVE, with keys that only the connection file has.

Without it IOPub is open to every user of the machine who finds its port. Kernels have to take part: those whose
kernelspec declares ``metadata.supported_encryption`` do (ipykernel from 7.4).
"""

from __future__ import annotations

import zmq
from jupyter_client.kernelspec import KernelSpec

from himalia.errors import BadRequest
from himalia.kernels.connection_file import ConnectionInfo
from himalia.settings import KernelEncryption


def transport_encryption(name: str, spec: KernelSpec, policy: KernelEncryption) -> str:
    """What jupyter_client's manager is to do with a kernel of this kernelspec, in its own word.

    Raises ``BadRequest`` if the kernel has to be encrypted and cannot be.
    """
    is_possible = _declares_curve(spec) and bool(zmq.has("curve"))
    if policy == "required" and not is_possible:
        raise BadRequest(
            f"kernelspec {name!r} does not declare CURVE encryption, which this server requires "
            "(kernel_encryption is 'required'); choose another kernel, or have the server run with 'auto'",
            kernel_name=name,
        )
    return "auto" if is_possible and policy != "off" else "disabled"


def check_attachable(connection: ConnectionInfo, path: str, policy: KernelEncryption) -> None:
    """Raises ``BadRequest`` for a kernel of somebody else's that is not encrypted where that is required."""
    if policy == "required" and not connection.is_encrypted:
        raise BadRequest(
            f"the kernel of {path} is not encrypted, which this server requires (kernel_encryption is 'required')",
            path=path,
        )


def _declares_curve(spec: KernelSpec) -> bool:
    declared = (spec.metadata or {}).get("supported_encryption") or ()
    names = [declared] if isinstance(declared, str) else declared
    return isinstance(names, (list, tuple)) and "curve" in [str(name).strip().lower() for name in names]
