"""The former name of ``himalia.spark.package``, for programs that import it and ``python -m``."""

from himalia.spark.package import main, ship, write_package

__all__ = ["ship", "write_package"]

if __name__ == "__main__":
    main()
