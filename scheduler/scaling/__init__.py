"""Elasticity: how many workers there are, which functions they get and how tenants share them.

Here is what decides: values, policies and the pure controller. What samples workers, keeps the
lead, stores the plan and starts processes is in `runtime`.
"""
