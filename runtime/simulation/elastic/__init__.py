"""Clusters that grow and shrink, simulated by rates: hours of load in seconds.

The controller and its policies are the real ones; messages are amounts that flow through queues.
Message by message, `sublet.runtime.simulation.engine` is exact, for seconds of a fixed cluster.
"""
