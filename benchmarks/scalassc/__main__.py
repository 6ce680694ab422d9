"""`python -m benchmarks.scalassc` runs the experiment."""

from benchmarks.scalassc.experiment import main

if __name__ == "__main__":
    main()
