"""`python -m benchmarks` is the comparison; the other scripts have their own names."""

from benchmarks.compare.experiment import main

if __name__ == "__main__":
    main()
