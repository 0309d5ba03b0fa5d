"""The former name of ``himalia.spark.worker_daemon``, for sessions that set ``spark.python.daemon.module`` to it."""

from himalia.spark.worker_daemon import main

if __name__ == "__main__":
    main()
