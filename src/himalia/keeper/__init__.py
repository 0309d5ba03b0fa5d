"""The keeper: a small process next to each kernel that outlives the server and keeps the kernel's output.

``python -m himalia.keeper DIRECTORY DESCRIPTOR`` starts a kernel as its child. It is the only subscriber of the
kernel's IOPub, and writes it to a bounded spool on disk. It notifies servers at once when the spool grows or the
kernel ends, and ends the kernel when no server has held its lease for a while.

``server_protocol`` declares the messages between both ends. ``process`` is the keeper's end, on the standard library
and pyzmq only, since there is one process for each kernel. ``client`` is the server's end; ``provisioner`` starts
kernels with it, ``spool_consumer`` reads their spools.
"""
