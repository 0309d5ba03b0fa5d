"""``format("himalia")``: any topic as a DataFrame, batch and streaming, reading and writing.

Executors need only Python, pyspark and pyarrow to import these modules (no msgspec, no httpx), so that a zip file of
the sources is enough for them (``--py-files``). No module starts a session or opens a connection when it is imported.
"""
