"""What takes Sublet to other machines: its container image, and examples of services around it.

Run by make; not in the wheel."""
