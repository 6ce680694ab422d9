"""Experiments on elasticity, simulated: how many workers (Styx), for whom (Stela, Henge), when."""
