"""Elasticity, the doing half: samples what a worker does, keeps the lead, stores the plan, asks for
workers. What should change is decided in `scheduler/scaling`.
"""
