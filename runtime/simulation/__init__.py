"""A cluster in one process, on a virtual clock: the code of real workers, all else modelled. It
measures performance for users; the simulated worlds that prove correctness are in
`tests/simulation`.
"""
