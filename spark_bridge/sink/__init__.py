"""Writes rows of Spark to functions, exactly once: tasks stage them, the driver's commit makes them
count. States that are set as they are come from `state`, files without Spark from `history`.
"""
