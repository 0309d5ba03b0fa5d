"""Spark: any topic as a DataFrame, and the pipeline that turns the log into tables."""
