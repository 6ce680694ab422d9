"""`python -m benchmarks.guard --base COMMIT` compares this checkout with a commit."""

from benchmarks.guard.experiment import main

if __name__ == "__main__":
    main()
