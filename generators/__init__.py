"""Code that is made from code, so that nothing is written twice. Run by make; not in the wheel."""
