"""`python -m benchmarks.soak` runs the experiment."""

from benchmarks.soak.experiment import main

if __name__ == "__main__":
    main()
