"""The values that the parts of a partition share: effects, queued work, leases, what it is given by
its worker. No part of a partition lives here, and nothing here changes by itself.
"""
