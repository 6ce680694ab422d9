"""Connects Spark Structured Streaming jobs to Sublet functions."""
