"""``format("himalia")``: any topic as a DataFrame, batch and streaming, both ways.

What executors import (``columns``, ``connection``, ``ranges``, ``fetching``, ``posting`` and the readers and writers
themselves) needs only Python, pyspark and pyarrow, so that a zip file with these sources is enough for them
(``--py-files``). Nothing here starts a session or touches the network when it is imported.
"""
