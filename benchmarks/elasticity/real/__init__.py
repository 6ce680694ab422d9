"""The elasticity experiments on real worker processes, whose handlers wait.

A plain `def` handler that sleeps holds one of its worker's threads, so that what a worker can do
does not depend on the machine's cores. (An `async def` handler that awaits `asyncio.sleep` holds
nothing of the worker: how many of those wait at once is bounded for each partition, and more
workers would not change it.)
"""
