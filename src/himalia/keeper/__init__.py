"""The keeper: a small process beside each kernel that outlives the server and keeps the kernel's output.

``python -m himalia.keeper DIRECTORY DESCRIPTOR`` starts a kernel as its child, listens to the kernel's IOPub,
as the only one, into a bounded spool on disk, tells servers at once when the spool grows or the kernel ends, and ends
the kernel when no server has held its lease for a while. Servers talk to it in JSON lines over a Unix socket;
``himalia.keeper.client`` is their side.

There is one such process for each kernel, so it is made of the standard library and pyzmq only.
"""
