"""`python -m benchmarks.compare` runs the experiment."""

from benchmarks.compare.experiment import main

if __name__ == "__main__":
    main()
