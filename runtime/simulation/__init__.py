"""A cluster in one process, on a virtual clock: the code of real workers, all else modelled."""
