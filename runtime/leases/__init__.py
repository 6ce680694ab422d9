"""Work that runs at a peer: who lends, who borrows, what crosses, how results come home.

Binding policies are in `scheduler/binding`; the lessor's partition commits, as always.
"""
